"""The whole train step on a GPU, with the kernels and with plain XLA: losses and times.

    python experiments/gpu/train_step.py [CONFIG]

Needs embark_jax installed with CUDA. Prints a JSON object; exits with 1 if the losses
differ. See README.md beside this.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from embark_jax.bench.step import draw_batches, measure_step
from embark_jax.config import reading
from embark_jax.run import experiment

CONFIG = Path(__file__).parents[1] / "cpu_step" / "config.yaml"
TOLERANCE = 1e-4
"""Of a loss after a pass over the batches, relative: sums are in another order."""


def main(config_file: str | Path = CONFIG) -> int:
    found = {}
    for kernels in ("xla", "mosaic_gpu"):
        config = reading.load(Path(config_file), [f"embedding.kernels={kernels}"])
        setup = experiment.build(config)
        found[kernels] = measure_step(setup, draw_batches(setup))
    plain, kernel = (found[name]["loss"][0] for name in ("xla", "mosaic_gpu"))
    difference = abs(plain - kernel) / plain
    print(json.dumps({**found, "relative_difference_of_loss": difference}, indent=1))
    return int(difference > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
