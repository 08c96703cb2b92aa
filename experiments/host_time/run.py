"""Times what the host does for a step: all that the training thread computes itself.

    python experiments/host_time/run.py --out experiments/host_time/results.json

Models have as many features as DLRM-DCNv2, T180 and T510, tiny tables and layers, and 8
CPU devices. What counts is CPU time of the thread that trains, so neither waiting for
devices nor what other processes do is in it; compilation is not, either. ``call_ms`` is
the part of it in which JAX starts the compiled step, measured alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from pathlib import Path

import jax

from embark_jax.config import ExperimentConfig
from embark_jax.data import Batch
from embark_jax.embedding.device_batch import put_batch
from embark_jax.run import experiment
from embark_jax.run.window import Window
from embark_jax.train.in_flight import STEPS_IN_FLIGHT
from embark_jax.train.trainer import Trainer

FEATURES = {"DLRM-DCNv2": 26, "T180": 177, "T510": 510}
DEVICES, SAMPLES, LOG_EVERY, WINDOWS, CALLS = 8, 256, 20, 5, 100


def config_of(name: str, features: int) -> ExperimentConfig:
    tables = {f"t{i}": {"rows": 100} for i in range(features)}
    return ExperimentConfig.model_validate(
        {
            "name": name,
            "data": {"kind": "synthetic", "train_samples": SAMPLES * 4},
            "model": {
                "kind": "dlrm_dcnv2",
                "bottom": [8, 4],
                "top": [8, 1],
                "cross_layers": 1,
            }
            | {"cross_rank": 4},
            "mesh": {"nodes": 1, "gpus_per_node": DEVICES},
            "embedding": {"dim": 4, "tables": tables},
            "train": {"batch_size": SAMPLES},
        }
    )


class Repeated:
    """A few batches of a dataset over and over, as making them is not measured."""

    def __init__(self, dataset, size: int):
        self._batches = [dataset.train_batch(step, size) for step in range(4)]

    def train_batch(self, step: int, size: int):
        return self._batches[step % len(self._batches)]


def call_ms(trainer: Trainer, batch: Batch) -> float:
    """Milliseconds of CPU time in which JAX starts a compiled step, and no more."""
    mesh, flying = trainer.embeddings.mesh, deque()
    placed = put_batch(trainer.check(batch), mesh, SAMPLES)
    start = time.thread_time()
    for _ in range(CALLS):
        flying.append(trainer.apply(placed))
        if len(flying) > STEPS_IN_FLIGHT:
            flying.popleft().numbers.block_until_ready()
    took = time.thread_time() - start
    jax.block_until_ready(trainer.state)
    return 1e3 * took / CALLS


def measure(name: str, features: int) -> dict[str, float | str]:
    setup = experiment.build(config_of(name, features))
    trainer, window = setup.trainer(), Window()
    data, times = Repeated(setup.dataset, SAMPLES), []
    start = time.thread_time()
    for result in trainer.iterate(data, LOG_EVERY * (WINDOWS + 1)):
        window.add(result)
        if result.step % LOG_EVERY == 0:
            window.close()
            times.append((time.thread_time() - start) / LOG_EVERY)
            start = time.thread_time()
    return {
        "model": name,
        "features": features,
        "host_ms": 1e3 * statistics.median(times[1:]),
        "call_ms": call_ms(trainer, data.train_batch(0, SAMPLES)),
        "least_ms": 1e3 * min(times[1:]),
        "most_ms": 1e3 * max(times[1:]),
        "jax": jax.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=FEATURES, choices=FEATURES)
    parser.add_argument("--out", type=Path, help="JSON; printed in any case.")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    found = []
    for name in args.models:
        found.append(measure(name, FEATURES[name]))
        print(json.dumps(found[-1]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
