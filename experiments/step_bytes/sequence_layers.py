"""What DLRMv4's layers move and compute for each sample, compiled for an absent H100.

    python -m experiments.step_bytes.sequence_layers [--samples 8]

Compiles the three layers, forward and backward, over packed samples whose lengths are
spread as MLPerf's are said to be, in plain XLA and with the kernel of attention. Writes
sequence_layers.json beside this and prints a table. Needs `pip install -e
.[gpu-compile]`. See README.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import _attention_blocks, attention
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax import models
from embark_jax.models.events import Sequences
from embark_jax.models.sequence import STU
from embark_jax.plans import fleet
from embark_jax.train.absent import absent_mesh
from experiments.step_bytes.hlo import Program

HERE = Path(__file__).parent
WIDTH, HEADS, HEAD_DIM, LONGEST, LAYERS = 512, 4, 128, 4086, 3
AT_CAP, LONGEST_OTHER = 0.265, 2800
"""Share of samples that have all events, and the longest of the others, whose lengths
are uniform: 2,080 events on average."""
ROOM = 1.03
"""Room for events, times their number."""
PRODUCT_FLOPS, ATTENTION_FLOPS, COPY_BYTES = 600e12, 450e12, 0.9 * 4.8e12
"""What an H200 is taken to reach a second: in products of bfloat16, in the kernel of
attention, and of its memory's bandwidth."""
KERNELS = ("xla", "mosaic_gpu")


def lengths_of(samples: int) -> np.ndarray:
    place = (np.arange(samples) + 0.5) / samples
    others = place / (1 - AT_CAP) * LONGEST_OTHER
    return np.where(place > 1 - AT_CAP, LONGEST, others).astype(int)


def compiled(events: int, samples: int, kernels: str) -> jax.stages.Compiled:
    """Gradients by parameters and events, for one GPU."""
    mesh = absent_mesh(fleet.load("dgx-h100", 1, 1), 1.4e11)
    sharding = NamedSharding(mesh, PartitionSpec())

    def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)

    shared: dict[str, Any] = {"variant": "dlrm_v4", "dropout": 0.0}
    layers = nnx.List(
        STU(
            *(WIDTH, HEADS, HEAD_DIM),
            compute_dtype="bfloat16",
            rngs=nnx.Rngs(0),
            **shared,
        )
        for _ in range(LAYERS)
    )
    graph, params = nnx.split(layers)

    def total(params, x, history, factors):
        sequences = Sequences(history)
        for layer in nnx.merge(graph, params):
            x = layer(x, sequences)
        return (x * factors).sum()

    spans = [shape(samples, dtype=jnp.int32)] * 3
    history = models.Packed(
        *(shape(events, 8), shape(events, dtype=jnp.int32), *spans),  # pyright: ignore
        longest=LONGEST,
        implementation=kernels,
    )
    params = jax.tree.map(lambda leaf: shape(*leaf.shape), params)
    x = shape(events, WIDTH)
    gradients = jax.jit(jax.grad(total, (0, 1)))
    return gradients.lower(params, x, history, x).compile()


def flops_of(lengths: np.ndarray) -> dict[str, float]:
    """FLOPs a sample of products with weights, and of attention over the pairs that
    there are, by definition: backward has twice the products of forward, and 2.5 times
    those of attention, with the scores that it makes again."""
    weights = WIDTH * 4 * HEADS * HEAD_DIM + 3 * HEADS * HEAD_DIM * WIDTH
    pairs = (lengths.astype(float) * (lengths + 1) / 2).mean()
    forward = 2 * 2 * HEADS * HEAD_DIM * pairs
    return {
        "products": LAYERS * 3 * 2 * weights * lengths.mean(),
        "attention": LAYERS * 3.5 * forward,
    }


def turns_of(lengths: np.ndarray, events: int) -> float:
    """How often the loops of plain attention run on average, over its groups."""
    size = attention.LARGEST_BLOCK
    blocks = (events + len(lengths) * (size - 1)) // size
    turns = [np.arange(-(-length // size)) + 1 for length in lengths]
    turns = np.concatenate(turns)
    turns = np.pad(turns, (0, blocks - len(turns)))
    shape = blocks, HEADS, size, HEAD_DIM
    groups = np.asarray(_attention_blocks.groups_of(jnp.asarray(turns), shape))
    return float(turns[groups[:, 0]].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=8)
    samples = parser.parse_args().samples
    lengths = lengths_of(samples)
    events = -(-int(lengths.sum() * ROOM) // 512) * 512
    flops = flops_of(lengths)
    found: dict[str, Any] = {
        "jax": jax.__version__,
        "samples": samples,
        "events a sample": float(lengths.mean()),
        "GFLOP a sample": {name: round(n / 1e9, 1) for name, n in flops.items()},
    }
    programs = {kernels: compiled(events, samples, kernels) for kernels in KERNELS}
    turns = turns_of(lengths, events)
    for kernels, program in programs.items():
        memory = program.memory_analysis()
        assert memory is not None
        parts = Program(program.as_text() or "", turns).moved()
        moved = sum(each.bytes for each in parts) / samples
        ms = 1e3 * moved / COPY_BYTES
        made = sum(each.flops for each in parts) / samples  # the kernel's are not there
        attended = flops["attention"] if kernels == "mosaic_gpu" else 0.0
        ms += 1e3 * (made / PRODUCT_FLOPS + attended / ATTENTION_FLOPS)
        found[kernels] = {
            "GB a sample": round(moved / 1e9, 3),
            "GFLOP a sample": round(float(made + attended) / 1e9, 1),
            "temporaries, GB": round(memory.temp_size_in_bytes / 1e9, 2),
            "ms a sample, at most": round(float(ms), 3),
        }
        print(kernels, found[kernels], flush=True)
    path = HERE / "sequence_layers.json"
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
