"""embark_jax's side: trains on the batches of a file and prints times as JSON."""

from __future__ import annotations

import json
import sys

import numpy as np
from timing import ROUNDS, OtherCores

from embark_jax.bench.step import measure_step
from embark_jax.cli.jax_setup import keep_freed_memory
from embark_jax.config import reading
from embark_jax.data import Batch
from embark_jax.run import experiment


def read_batches(path: str, features: list[str]) -> list[Batch]:
    with np.load(path) as file:
        return [
            Batch(
                file[f"{i}.dense"],
                {name: file[f"{i}.{name}"] for name in features},
                file[f"{i}.labels"],
            )
            for i in range(int(file["batches"]))
        ]


def main(config_file: str, batches_file: str) -> None:
    keep_freed_memory()  # as `embark train` does
    setup = experiment.build(reading.load(config_file, ()))
    batches = read_batches(batches_file, [f.name for f in setup.features])
    clock = OtherCores()
    measured = measure_step(setup, batches, ROUNDS)
    measured["other_cores"] = clock.read()
    print(json.dumps({"embark_jax": measured}))


if __name__ == "__main__":
    main(*sys.argv[1:])
