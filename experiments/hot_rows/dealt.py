"""Hot rows beside the planner that dealt rows instead; see README.md.

    git worktree add --detach /tmp/dealt 13fd91d
    python experiments/hot_rows/dealt.py /tmp/dealt

That planner dealt a table's first rows to its row shards one by one, so that all got
even shares of the ids. Its plans are priced by its own cost model, and by today's as if
their rows went in turn; at Zipf 0 dealing changes nothing, so that what is left is the
difference of the models.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from embark_jax import planner
from embark_jax.planner import ProgramModel
from embark_jax.plans.fleet import dgx_h100
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import TableSpec

CASES = (("dlrm_dcnv2", 1), ("dlrm_dcnv2", 8), ("dlrm_dcnv2", 16), ("t180", 1))
CASES += (("synthetic_small", 8),)
SKEWS = (0.0, 1.1, 1.3)
HERE = Path(__file__).parent
RESULTS = HERE / "dealt.json"


def dealt_plan(worktree: Path, model: str, nodes: int, skew: float) -> dict[str, Any]:
    """The plan that the other commit makes, and what it expects of it."""
    script = HERE / "dealt_plans.py"
    ran = subprocess.run(
        [sys.executable, script, model, str(nodes), str(skew)],
        cwd=worktree,
        env={**os.environ, "PYTHONPATH": f"{worktree}:{worktree / 'kernels'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def in_turn(record: dict[str, Any]) -> list[Placement]:
    """Its placements, whose rows go to row shards in turn."""
    kept = {field.name for field in dataclasses.fields(Placement)}
    return [
        Placement(
            **{
                **{key: value for key, value in each.items() if key in kept},
                "table": TableSpec(**each["table"]),
                "devices": tuple(each["devices"]),
            }
        )
        for each in record["placements"]
    ]


def compare(worktree: Path, model: str, nodes: int, skew: float) -> dict[str, Any]:
    """Both planners' plans of one case, by either model."""
    listed = planner.load_table_list(model)
    tables, features = listed.specs()
    fleet = dgx_h100(nodes)
    # The other commit counts no time for a message.
    fleet = dataclasses.replace(
        fleet, efficiency=dataclasses.replace(fleet.efficiency, message_us=0.0)
    )
    workload = listed.workload(fleet, None, skew, overlap=False, kernels="mosaic_gpu")
    dealt = dealt_plan(worktree, model, nodes, skew)
    by_our_model = planner.predict(
        in_turn(dealt), features, workload, ProgramModel(workload)
    )
    cold = dict.fromkeys((t.name for t in tables), ForcedPlacement(hot_rows=0))

    def step_ms(forced: dict[str, ForcedPlacement]) -> float:
        made = planner.plan_for(workload, tables, features, forced=forced)
        assert made.prediction is not None
        return made.prediction.step_ms

    return {
        "model": model,
        "gpus": 8 * nodes,
        "zipf_exponent": skew,
        "dealt_ms": dealt["step_ms"],
        "dealt_cpu_s": dealt["cpu_s"],
        "dealt_in_turn_ms": by_our_model.step_ms,
        "without_ms": step_ms(cold),
        "with_ms": step_ms({}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worktree", type=Path, help="of commit 13fd91d")
    asked = parser.parse_args()
    print(
        "| model | GPUs | Zipf | dealt, its model | dealt plan, rows in turn, ours | "
        "no hot rows | hot rows |"
    )
    print("|---" * 7 + "|")
    results = []
    for model, nodes in CASES:
        for skew in SKEWS:
            each = compare(asked.worktree, model, nodes, skew)
            results.append(each)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(
                f"| {model} | {each['gpus']} | {skew} | {each['dealt_ms']:.3f} | "
                f"{each['dealt_in_turn_ms']:.3f} | {each['without_ms']:.3f} | "
                f"{each['with_ms']:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
