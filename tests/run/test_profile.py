"""``embark train --profile``: which steps it traces, and what the trace names."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.planner.cost.work import PHASES, STORE
from embark_jax.run import profile as profiles
from embark_jax.run.profile import StepProfile
from tests import runs

LAST = 10
SPLIT = "embedding.tables.user.column_shards=2"
"""Columns of a table on several devices, whose squares travel for row-wise rules."""
OTHER_SCOPES = {"dense", "dense_update", "checks"}


def train(folder: Path, *args: str) -> runs.Outcome:
    config = runs.write_config(folder)
    args = (*args, f"train.steps={LAST}", "train.checkpoint_every=4")
    return runs.embark("train", config, "--workdir", folder / "run", *args)


def traces(folder: Path, kind: str) -> list[Path]:
    return sorted((folder / "run" / "profile").rglob(f"*.{kind}"))


def scopes(xplane: bytes) -> set[str]:
    """All scopes in the names of the traced program's instructions."""
    names = re.findall(rb"jit\(train_step\)/[ -~]*", xplane)
    return {scope for name in names for scope in name.decode().split("/")[1:-1]}


@pytest.mark.slow
def test_a_trace_has_its_steps_alone_and_the_phases_of_the_plan(tmp_path):
    rule = "embedding.optimizer.kind=rowwise_adagrad"
    outcome = train(tmp_path, "--profile", "4:6", SPLIT, rule)
    assert outcome.code == 0, outcome.err

    (trace,) = traces(tmp_path, "trace.json.gz")
    with gzip.open(trace) as file:
        traced = json.load(file)["traceEvents"]
    modules = [each.get("args", {}).get("hlo_module") for each in traced]
    assert "jit_train_step" in modules
    executed = Counter(
        each["name"]
        for each, module in zip(traced, modules, strict=True)
        if module == "jit_train_step" and each["name"].startswith("all-to-all")
    )
    assert set(executed.values()) == {8 * 3}, "devices times steps"
    assert str(trace) in outcome.out.replace("\n", "")
    assert "https://ui.perfetto.dev" in outcome.out
    link = trace.relative_to(tmp_path / "run").as_posix()
    assert f'href="{link}"' in (tmp_path / "run" / "report.html").read_text()

    # On a CPU events have names of instructions; their scopes are in the program.
    (xplane,) = traces(tmp_path, "xplane.pb")
    named = scopes(xplane.read_bytes())
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    planned = plan["prediction"]["breakdown"]["phase_ms"]
    on_devices = set(PHASES) - {STORE}  # the host moves rows of stores
    assert set(planned) == on_devices
    assert named >= on_devices
    for other in OTHER_SCOPES:
        assert any(other in scope for scope in named), other


def test_a_trace_is_closed_wherever_its_run_ends(tmp_path):
    """Without training: inside the steps, before them, and behind them."""
    said = []
    with StepProfile(tmp_path, (4, 8), said.append) as profile:
        profile.begin(3)
    (trace,) = profiles.traces(tmp_path)
    with StepProfile(tmp_path, (9, 10), said.append) as profile:
        profile.begin(7)
        profile.at_stop(7)
    assert profiles.traces(tmp_path) == [trace]
    assert said[0].startswith(f"profile: {trace} (open it at https://ui.perfetto.dev")
    assert said[1:] == ["no profile: training ended before step 9"]
    with pytest.raises(ConfigError, match="5:8: this run trains steps 6 to 10"):
        StepProfile(tmp_path, (5, 8), said.append).check(5, 10)
