"""Times the train step of DLRM-DCNv2 on a GPU, and says which kernels take the time.

A case is a workload and the implementation of lookups and updates. "same bits" trains
twice and compares all arrays, "profile" says which kernels take the time.
``battery.py`` runs each in a process of its own, since two states do not fit.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from embark_jax.bench.step import draw_batches, measure_step
from embark_jax.config import ExperimentConfig, reading
from embark_jax.run import experiment
from embark_jax.run.experiment import plan_model
from embark_jax.simulator import simulate_program
from embark_jax.train.device_batch import put_batch
from embark_jax.train.trainer import Trainer

ONE_H200 = ("fleet=dgx-h200", "mesh.gpus_per_node=1")
BATCH = 65_536
WORKLOADS = {
    "benchmark": (
        "scale=0.5",
        f"train.batch_size={2 * BATCH}",
        "data.zipf_exponent=0",
        "embedding.optimizer.kind=adagrad",
    ),
    "zipf": (
        f"train.batch_size={BATCH}",
        "embedding.optimizer.kind=rowwise_adagrad",
    ),
}
"""The ids and the rule of MLPerf, with half of its rows, since all of them and their
states take 194 GiB; and all rows with ids by a power law and one state a row. The
scale is that of the batch, too, which is ``BATCH`` in both."""
SAME_BITS, PROFILE = "same bits", "profile"
CASES = (
    SAME_BITS,
    "benchmark mosaic_gpu",
    "zipf mosaic_gpu",
    PROFILE,
    "benchmark xla",
    "zipf xla",
)
"""In the order in which they would be missed if the time is up."""
ROUNDS = 5
SMALL = (*ONE_H200, "scale=0.001", "train.batch_size=4096000")
"""4,096 samples a step, and a thousandth of the rows."""
STEPS = 20
KINDS = {
    "product": r"gemm|cublas|nvjet|cutlass|wgmma|dot",
    "sort": r"sort|radix",
    "lookup": r"sum_bags",
    "update": r"finish_segments|sum_begun_before|update_rows",
    "number segments": r"number_segments",
    "concatenation": r"concatenate",
    "copy": r"memcpy|memset|copy",
    "exchange": r"nccl",
}
"""Kinds of kernels, by what their names contain; the first that fits. The rest is
element-wise."""
ELEMENT_WISE, IDLE = "element-wise", "idle"


def read_config(workload: str, implementation: str) -> ExperimentConfig:
    """The config of DLRM-DCNv2 for a workload."""
    kernels = f"embedding.kernels={implementation}"
    return reading.load("dlrm_dcnv2", (*ONE_H200, *WORKLOADS[workload], kernels))


def time_case(workload: str, implementation: str) -> dict[str, Any]:
    """The figures of ``embark bench step``, and the predicted time."""
    config = read_config(workload, implementation)
    priced, plan, _ = plan_model(config)
    predicted = simulate_program(plan.placements, plan.features, priced)
    setup = experiment.build(config)
    batches = draw_batches(setup)
    found = measure_step(setup, batches, ROUNDS)
    figures = {key: value for key, value in found.items() if key.endswith("_ms")}
    return {
        "op": "step",
        "implementation": implementation,
        "ids": workload,
        "median_s": found["step_ms"] / 1e3,
        "samples_per_s": found["samples_per_s"],
        "predicted_ms": predicted.timeline.step_ms,
        **figures,
    }


def profile_case(workload: str, implementation: str) -> dict[str, Any]:
    """Milliseconds a step by kind of kernel."""
    setup = experiment.build(read_config(workload, implementation))
    batches = draw_batches(setup)
    trainer = setup.trainer()
    list(trainer.iterate_batches(batches))
    plan, mesh = trainer.embeddings.plan, trainer.embeddings.mesh
    on_devices = [put_batch(batch, plan, mesh) for batch in batches]
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder)
        for batch, following in itertools.pairwise(on_devices):
            output = trainer.start(batch, following)
        jax.block_until_ready(output)
        jax.profiler.stop_trace()
        events = list(device_events(Path(folder)))
    steps = len(on_devices) - 1
    kinds = table_of_kinds(events, steps)
    found = {"op": PROFILE, "implementation": implementation, "ids": workload}
    return {**found, "median_s": sum(kinds.values()) / 1e3, "ms": kinds}


def device_events(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Name, begin and duration in ns of each kernel in a trace."""
    (path,) = folder.rglob("*.xplane.pb")
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        if plane.name.startswith("/device:GPU:0"):
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        yield event.name, event.start_ns, event.duration_ns


def table_of_kinds(
    events: Iterable[tuple[str, float, float]], steps: int
) -> dict[str, float]:
    """Milliseconds a step of each kind of kernel, and of none."""
    events = sorted(events, key=lambda event: event[1])
    by_kind: dict[str, float] = {}
    busy, end = 0.0, events[0][1]
    for name, begin, duration in events:
        kind = kind_of(name)
        by_kind[kind] = by_kind.get(kind, 0.0) + duration
        busy += max(0.0, begin + duration - max(begin, end))
        end = max(end, begin + duration)
    by_kind[IDLE] = end - events[0][1] - busy
    return {kind: ns / steps / 1e6 for kind, ns in sorted(by_kind.items())}


def kind_of(kernel: str) -> str:
    """The kind of a kernel, by its name."""
    found = (kind for kind, words in KINDS.items() if re.search(words, kernel, re.I))
    return next(found, ELEMENT_WISE)


def train_twice() -> dict[str, Any]:
    """Trains from the same state, on the same batches, twice, and counts the arrays
    that end with other bits."""
    config = reading.load("dlrm_dcnv2", SMALL)
    ended = []
    for _ in range(2):
        setup = experiment.build(config)
        check, size = setup.checker(), config.train.batch_size
        trainer: Trainer = setup.trainer()
        list(
            trainer.iterate_batches(
                check(setup.dataset.train_batch(i, size)) for i in range(STEPS)
            )
        )
        ended.append([np.asarray(x) for x in jax.tree.leaves(trainer.state)])
    unequal = [a.tobytes() != b.tobytes() for a, b in zip(*ended, strict=True)]
    found = {"op": "train twice", "about": f"{STEPS} steps", "arrays": len(unequal)}
    if any(unequal):
        return found | {"error": f"{sum(unequal)} of {len(unequal)} arrays differ"}
    return found | {"relative_error": 0.0, "tolerance": 0.0}


def run_case(case: str) -> dict[str, Any]:
    """The row of a case."""
    if case == SAME_BITS:
        return train_twice()
    if case == PROFILE:
        return profile_case("benchmark", "mosaic_gpu")
    return time_case(*case.split())
