"""Plans of this planner beside those of another checkout of it; see README.md.

    python experiments/planners/before_after.py published --before CHECKOUT
    python experiments/planners/before_after.py published --certify 60
    python experiments/planners/before_after.py skewed
    python experiments/planners/before_after.py generated

The other planner makes its plans in a process of its own, in the same run; all plans
are priced by this one's cost model, rows in turn. In results/search, writes KIND.json
and a table of it, KIND.md; of certified plans, certified.*; beside another checkout,
before_after.*; without hot rows, with _cold in the name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import generated

from embark_jax.planner import (
    ProgramModel,
    Workload,
    plan_for,
    predict,
    read_table_list,
)
from embark_jax.plans.fleet import dgx_h100
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.storage import Placement

MODELS = Path(__file__).parents[2] / "configs" / "models"
RESULTS = Path(__file__).parent / "results" / "search"
SKEWS = (0.0, 0.6, 1.3)
BEFORE = """
import inspect, json, sys, time
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/kernels", sys.argv[2]]
import before_after
from embark_jax import planner
before = time.process_time()
tables, features, workload = before_after.request(json.loads(sys.argv[3]))
priced = {}
if "kernels" in inspect.signature(planner.plan).parameters:
    priced["kernels"] = workload.kernels
made = planner.plan(
    tables, features, workload.fleet, workload.batch_size,
    zipf_exponent=workload.zipf_exponent, optimizer=workload.optimizer, **priced,
)
print(json.dumps({
    "cpu_s": time.process_time() - before,
    "own_step_ms": made.prediction.step_ms,
    "own_bound_ms": made.prediction.lower_bound_ms,
    "placements": [
        [p.cluster, p.row_shards, p.column_shards, p.devices, p.exchange]
        for p in made.placements
    ],
}))
"""


def cases() -> list[dict[str, Any]]:
    """Published models as in ``run.py``, at other skews, and generated models."""
    lists = [  # those without skew are of no measured model
        path.stem
        for path in sorted(MODELS.glob("*.yaml"))
        if read_table_list(path.read_text()).zipf_exponent
    ]
    skewed = ("dlrm_dcnv2", "t180", "t200", "t510")
    return [
        *(
            {"kind": "published", "model": name, "nodes": n}
            for name in lists
            for n in (1, 8, 16)
        ),
        *(
            {"kind": "skewed", "model": name, "nodes": n, "zipf_exponent": skew}
            for name in skewed
            for skew in SKEWS
            for n in (1, 8, 16)
        ),
        *(
            {"kind": "generated", "tables": tables, "nodes": n, "seed": seed}
            for tables in (40, 300, 1000)
            for n in (2, 8, 16)
            for seed in range(2)
        ),
        *(
            {"kind": "generated", "tables": 2000, "nodes": 12, "seed": seed}
            for seed in range(2)
        ),
    ]


def request(case: dict[str, Any]) -> tuple[list, list, Workload]:
    """Tables, features and workload of a case."""
    fleet = dgx_h100(case["nodes"])
    if "tables" in case:
        tables, features = generated.model(case["tables"], fleet, case["seed"])
        batch = 65_536 // fleet.devices * fleet.devices
        return tables, features, Workload(fleet, batch, 1.1, kernels="mosaic_gpu")
    listed = read_table_list((MODELS / f"{case['model']}.yaml").read_text())
    skew = case.get("zipf_exponent", listed.zipf_exponent or 0.0)
    optimizer = listed.optimizer or "rowwise_adagrad"
    workload = Workload(
        fleet, listed.batch or 65_536, skew, optimizer=optimizer, kernels="mosaic_gpu"
    )
    return *listed.specs(), workload


def compare(case: dict[str, Any], given: argparse.Namespace) -> dict[str, Any] | None:
    """Steps, bounds and CPU seconds; None where the tables do not fit."""
    tables, features, workload = request(case)
    model, begun = ProgramModel(workload), time.process_time()
    names = [each.name for each in tables] if given.cold else []
    forced = dict.fromkeys(names, ForcedPlacement(hot_rows=0))
    try:
        made = plan_for(workload, tables, features, forced=forced)
    except ValueError:
        return None
    result = {
        **case,
        "step_ms": made.prediction.step_ms,
        "bound_ms": made.prediction.lower_bound_ms,
        "cpu_s": time.process_time() - begun,
    }
    if given.certify:
        proven = plan_for(
            workload, tables, features, forced=forced, certify_s=given.certify
        )
        result["certified_step_ms"] = proven.prediction.step_ms
        result["certified_bound_ms"] = proven.prediction.lower_bound_ms
    if given.before is not None:
        here = str(Path(__file__).parent)
        command = [sys.executable, "-c", BEFORE, str(given.before), here]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        try:
            found = subprocess.run(
                [*command, json.dumps(case)],
                capture_output=True,
                text=True,
                check=True,
                timeout=given.limit_s,
                env=environment,
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            return result | {"before": type(error).__name__}
        before = json.loads(found.stdout)
        placements = [
            Placement(table, cluster, rows, columns, tuple(devices), exchange)
            for table, (cluster, rows, columns, devices, exchange) in zip(
                tables, before.pop("placements"), strict=True
            )
        ]
        priced = predict(placements, features, workload, model)
        before["step_ms"] = priced.step_ms
        before["fits"] = priced.device_bytes[0] <= 0.9 * 80e9
        result["before"] = before
    return result


def is_of(result: dict[str, Any], case: dict[str, Any]) -> bool:
    return case.items() <= {key: result.get(key) for key in case}.items()


def table(results: list[dict[str, Any]]) -> str:
    """In Markdown, a line a case."""
    lines = [
        "| case | GPUs | step, ms | gap, % | CPU s | certified: ms | gap, % | "
        "before: ms | CPU s | change, % |",
        "|---" * 10 + "|",
    ]
    for result in results:
        before = result.get("before")
        name = result.get("model") or f"{result['tables']} tables, {result['seed']}"
        if "zipf_exponent" in result:
            name += f", Zipf {result['zipf_exponent']}"
        step_ms = result["step_ms"]
        cells = [
            name,
            f"{8 * result['nodes']}",
            f"{step_ms:.4g}",
            f"{100 * (step_ms / result['bound_ms'] - 1):.1f}",
            f"{result['cpu_s']:.1f}",
        ]
        certified = result.get("certified_step_ms")
        if certified:
            gap = certified / result["certified_bound_ms"] - 1
            cells += [f"{certified:.4g}", f"{100 * gap:.1f}"]
        else:
            cells += ["–", "–"]
        if isinstance(before, dict):
            change = 100 * (step_ms / before["step_ms"] - 1)
            earlier = f"{before['step_ms']:.4g}", f"{before['cpu_s']:.1f}"
            cells += [*earlier, f"{change:+.1f}"]
        else:
            cells += [before or "–", "–", "–"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares with another checkout.")
    parser.add_argument("--before", type=Path, help="a checkout of another version")
    parser.add_argument("--limit-s", type=float, default=120.0)
    parser.add_argument("--certify", type=float, default=0.0)
    parser.add_argument("--cold", action="store_true", help="without hot rows")
    kinds = ("published", "skewed", "generated")
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--only", default="", help="part of a case, as it is printed")
    given = parser.parse_args()
    name = "before_after" if given.before is not None else given.kind
    name = "certified" if given.certify else name
    path = RESULTS / f"{name}{'_cold' * given.cold}.json"
    for case in cases():
        asked = case["kind"] == given.kind and given.only in json.dumps(case)
        result = compare(case, given) if asked else None
        if result is not None:
            # Results of other cases stay, also of those that another process makes.
            known = json.loads(path.read_text()) if path.exists() else []
            known = [each for each in known if not is_of(each, case)] + [result]
            known = [one for each in cases() for one in known if is_of(one, each)]
            print(json.dumps(result), flush=True)
            path.write_text(json.dumps(known, indent=1) + "\n")
            path.with_suffix(".md").write_text(table(known))


if __name__ == "__main__":
    main()
