"""Plans of published and of generated models: steps, gaps, seconds; see README.md.

    python -m experiments.planners.run published
    python -m experiments.planners.run generated
    python -m experiments.planners.run published --torchrec-python VENV/bin/python

Writes published.json or generated.json beside this and prints a table. TorchRec's plans
lie in torchrec/, and are made anew with an environment that has it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embark_jax import planner
from embark_jax.config.table_lists import read_table_list
from embark_jax.planner import Workload, plan_for
from embark_jax.planner.cost.memory import Memory
from embark_jax.plans.fleet import Fleet, dgx_h100
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from experiments.results import output_of

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "configs" / "models"
NODES = (1, 8, 16)
TORCHREC_S = 900
"""After which its planner is stopped."""
TORCHREC_SHARES = (1.0, 0.5)
"""Of the devices' memory, that it is told to use: the second where its plan for the
first does not fit."""
GENERATED = [
    (n, nodes, seed)
    for n in (40, 300, 1000)
    for nodes in (2, 8, 16)
    for seed in range(2)
]
GENERATED += [(2000, 12, seed) for seed in range(2)]
"""Tables, nodes, seed."""
BATCH, ZIPF_EXPONENT = 65_536, 1.1
"""Of generated models."""

ROWS, WIDTHS, HOTNESS = (10, 1e8), (4, 2048), (1, 5000)
"""Ends of what is drawn for generated tables."""
SPREAD = 1 / 6
"""Standard deviation of logarithms, as a share of their range."""
LARGE_SHARE, REST_SHARE = 1 / 3, 0.2
"""Of the fleet's memory: what one table takes, and all others at most."""
STATE = 2
"""float32 values for each parameter, with what an optimizer keeps at most."""


class Case(NamedTuple):
    """What is planned."""

    name: str
    tables: Sequence[TableSpec]
    features: Sequence[FeatureSpec]
    workload: Workload

    @property
    def file(self) -> str:
        return f"{self.name}_{self.workload.devices}.json"


def published() -> Iterator[Case]:
    """Yields the lists of ``configs/models`` that say how they were measured, on 8, 64
    and 128 H100, where their tables could fit with nothing else on the devices."""
    for nodes in NODES:
        for path in sorted(MODELS.glob("*.yaml")):
            listed = read_table_list(path.read_text())
            if not (listed.batch and listed.zipf_exponent and listed.optimizer):
                continue
            workload = Workload(
                dgx_h100(nodes),
                listed.batch,
                listed.zipf_exponent,
                optimizer=listed.optimizer,
                kernels="mosaic_gpu",
            )
            tables, features = listed.specs()
            memory = Memory(workload)
            needed = sum(table.rows * memory.row_bytes(table.dim) for table in tables)
            if needed / workload.devices <= memory.limit_bytes:
                yield Case(path.stem, tables, features, workload)


def generated() -> Iterator[Case]:
    """Yields models of unlike tables: what no published list looks like."""
    for tables, nodes, seed in GENERATED:
        fleet = dgx_h100(nodes)
        batch = BATCH // fleet.devices * fleet.devices
        workload = Workload(fleet, batch, ZIPF_EXPONENT, kernels="mosaic_gpu")
        name = f"{tables} tables, {seed}"
        yield Case(name, *random_model(tables, fleet, seed), workload)


def random_model(
    tables: int, fleet: Fleet, seed: int
) -> tuple[list[TableSpec], list[FeatureSpec]]:
    """So many tables, each read by a feature; rows, widths and hotness are log-normal,
    cut at what production models have, and one table takes a third of the memory.

    Args:
      tables: how many.
      fleet: whose memory the largest takes a third of.
      seed: of all that is random.
    """
    rng = np.random.default_rng(seed)
    rows, widths, hotness = (
        _log_normal(rng, tables, low, high) for low, high in (ROWS, WIDTHS, HOTNESS)
    )
    widths = 2 ** np.round(np.log2(widths)).astype(int)
    memory = fleet.devices * fleet.device.memory_bytes / (4 * STATE)
    widths[0] = 128
    rows[0] = LARGE_SHARE * memory / widths[0]
    values = float(rows[1:] @ widths[1:])
    rows[1:] *= min(1.0, REST_SHARE * memory / values)
    rows = np.maximum(rows, ROWS[0]).astype(np.int64)
    specs = [TableSpec(f"t{i}", int(rows[i]), int(widths[i])) for i in range(tables)]
    ids = np.maximum(1, np.round(hotness)).astype(int)
    return specs, [
        FeatureSpec(spec.name, hotness=int(each))
        for spec, each in zip(specs, ids, strict=True)
    ]


def _log_normal(
    rng: np.random.Generator, number: int, low: float, high: float
) -> np.ndarray:
    middle, spread = (np.log(low) + np.log(high)) / 2, np.log(high / low) * SPREAD
    return np.clip(np.exp(rng.normal(middle, spread, number)), low, high)


def torchrec(case: Case, python: Path | None) -> dict[str, Any]:
    """TorchRec's answer, see ``ask_torchrec.py``: asked, or as it was kept; empty if
    there is none."""
    kept = HERE / "torchrec" / case.file
    if python is None:
        return json.loads(kept.read_text()) if kept.exists() else {}
    answer: dict[str, Any] = {}
    for share in TORCHREC_SHARES:
        answer = ask(case, python, share)
        if "tables" not in answer or price(case, peer_placements(case, answer))["fits"]:
            break
    kept.write_text(json.dumps(answer) + "\n")
    return answer


def ask(case: Case, python: Path, memory_share: float) -> dict[str, Any]:
    """Asks TorchRec for a plan, or says why there is none.

    Raises:
      RuntimeError: with what it printed, if it breaks.
    """
    workload, device = case.workload, case.workload.fleet.device
    request = {
        "tables": [
            {
                "name": table.name,
                "rows": table.rows,
                "dim": table.dim,
                "hotness": [f.hotness for f in case.features if f.table == table.name],
            }
            for table in case.tables
        ],
        "devices": workload.devices,
        "gpus_per_node": workload.fleet.gpus_per_node,
        "device_batch": workload.device_batch,
        "optimizer": workload.optimizer,
        "memory_bytes": memory_share * device.memory_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "node_link_bytes_per_s": device.node_link_bytes_per_s,
        "network_bytes_per_s": device.network_bytes_per_s,
    }
    try:
        answered = subprocess.run(
            [python, HERE / "ask_torchrec.py"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TORCHREC_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no plan within {TORCHREC_S} s"}
    if answered.returncode:
        raise RuntimeError(f"TorchRec failed: {answered.stderr[-2000:]}")
    return json.loads(answered.stdout)


def peer_placements(case: Case, answer: Mapping[str, Any]) -> list[Placement]:
    """The plan of an answer. TorchRec's sharded tables are pooled by the owner: RB. Its
    row shards are blocks of neighbouring rows, ours take every n-th row, which under a
    power law are far more even: the price of its row-wise tables is that of ours, so
    lower than what it would pay.

    Raises:
      ValueError: if the shards of a table are no grid of equal widths.
    """
    return [_placement(table, answer["tables"][table.name]) for table in case.tables]


def _placement(table: TableSpec, planned: Mapping[str, Any]) -> Placement:
    if planned["sharding"] == "data_parallel":
        return Placement(table, "dp")
    # The last blocks of few rows on many devices hold none.
    shards = [shard for shard in planned["shards"] if all(shard[3:])]
    owners = {(row, column): device for device, row, column, *_ in shards}
    rows, columns = ({corner[axis] for corner in owners} for axis in (0, 1))
    widths = {shard[4] for shard in shards}
    if len(widths) != 1 or len(owners) != len(rows) * len(columns):
        raise ValueError(f"table {table.name!r}: its shards are no even grid: {shards}")
    devices = tuple(owners[corner] for corner in sorted(owners))
    return Placement(table, "rb", len(rows), len(columns), devices)


def price(case: Case, placements: Sequence[Placement]) -> dict[str, Any]:
    """Step of a plan by the cost model of the compiled program, and whether it fits."""
    workload = case.workload
    found = planner.price(placements, case.features, workload).prediction()
    fits = max(found.device_bytes) <= Memory(workload).limit_bytes
    return {"step_ms": found.step_ms, "fits": bool(fits)}


def compare(case: Case, python: Path | None) -> dict[str, Any]:
    """Step, bound and CPU seconds of our plan, and TorchRec's."""
    begun = time.process_time()
    made = plan_for(case.workload, case.tables, case.features).prediction
    assert made is not None
    found: dict[str, Any] = {
        "model": case.name,
        "gpus": case.workload.devices,
        "step_ms": made.step_ms,
        "bound_ms": made.lower_bound_ms,
        "cpu_s": time.process_time() - begun,
    }
    answer = torchrec(case, python)
    if "tables" in answer:
        found["torchrec"] = price(case, peer_placements(case, answer))
        found["torchrec"]["cpu_s"] = answer["cpu_s"]
    return found


def row(found: dict[str, Any]) -> str:
    """A line of the table; a plan in brackets does not fit."""
    gap = 100 * (found["step_ms"] / found["bound_ms"] - 1)
    cells = [found["model"], found["gpus"], f"{found['step_ms']:.4g}", f"{gap:.1f}"]
    cells.append(f"{found['cpu_s']:.1f}")
    if peer := found.get("torchrec"):
        times = f"{peer['step_ms'] / found['step_ms']:.2f}"
        cells += [times if peer["fits"] else f"({times})", f"{peer['cpu_s']:.0f}"]
    else:
        cells += ["–", "–"]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("published", "generated"))
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--torchrec-python", type=Path)
    parser.add_argument("--out", type=Path, help="the JSON file")
    given = parser.parse_args()
    free = ("kind", "torchrec_python")
    out = output_of(parser, given, HERE / f"{given.kind}.json", free)
    cases = published() if given.kind == "published" else generated()
    print(
        "| model | GPUs | step, ms | gap, % | CPU s | TorchRec's step over ours "
        "| its CPU s |\n" + 7 * "|---" + "|"
    )
    results = []
    for case in cases:
        if given.only in case.name:
            results.append(compare(case, given.torchrec_python))
            print(row(results[-1]), flush=True)
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
