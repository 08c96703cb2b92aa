"""A plan of the planner that dealt rows; dealt.py runs this in that commit's tree."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

from embark_jax import planner
from embark_jax.plans.fleet import dgx_h100


def main() -> None:
    model, nodes, skew = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    listed = planner.read_table_list(Path(f"configs/models/{model}.yaml").read_text())
    tables, features = listed.specs()
    begin = time.process_time()
    workload = listed.workload(
        dgx_h100(nodes), None, skew, overlap=False, kernels="mosaic_gpu"
    )
    made = planner.plan_for(workload, tables, features)
    assert made.prediction is not None
    record = {
        "cpu_s": time.process_time() - begin,
        "step_ms": made.prediction.step_ms,
        "placements": [dataclasses.asdict(each) for each in made.placements],
    }
    json.dump(record, sys.stdout)


if __name__ == "__main__":
    main()
