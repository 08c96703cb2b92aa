"""Prints the bytes that the cost model prices beside those of the audited steps.

    python -m experiments.step_bytes.priced

Of routes, lookups, row gradients and updates, with the kernels and in plain XLA; the
plans are those of the audits, which are priced for the kernels.
"""

from __future__ import annotations

import dataclasses
import json
import re

from embark_jax.planner import ProgramModel, phases, plan_for, read_table_list
from embark_jax.plans import fleet
from experiments.step_bytes.run import CASES, MODELS, RESULTS, SHRUNK, an_eighth

AUDITED = "route", "lookup", "row_gradients", "update"
IMPLEMENTATIONS = "mosaic_gpu", "xla"


def main() -> None:
    audits = json.loads((RESULTS / "after.json").read_text())
    for case, (name, *options) in CASES.items():
        text = (MODELS / f"{name}.yaml").read_text()
        if case in SHRUNK:
            text = re.sub(r"(?<=\brows: )[\d_]+", an_eighth, text)
        listed = read_table_list(text)
        given = dict(zip(options[::2], options[1::2], strict=True))
        workload = listed.workload(
            fleet.dgx_h200(1, int(given["--gpus"])),
            int(given["--batch"]) if "--batch" in given else None,
            float(given["--zipf"]) if "--zipf" in given else None,
            given.get("--optimizer"),
            overlap=False,
        )
        plan = plan_for(workload, *listed.specs())
        cells, ratios = [], [1.0, 1.0]
        for kernels in IMPLEMENTATIONS:
            priced = dataclasses.replace(workload, kernels=kernels)
            of_step = phases(
                plan.placements,
                plan.features,
                priced,
                ProgramModel(priced),
                plan.capacities,
            )
            audit = audits[f"{case} {kernels}"]["phases"]
            found = (
                sum(float(phase.memory_bytes.mean()) for phase in of_step),
                sum(
                    audit[p]["read_bytes"] + audit[p]["written_bytes"] for p in AUDITED
                ),
            )
            cells += [f"{each / 1e9:.1f}" for each in found]
            ratios = [each / ratio for each, ratio in zip(found, ratios, strict=True)]
        cells += [f"{ratio:.2f}" for ratio in ratios]
        print(f"| {case} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
