"""Temporaries of a train step whose dense layers go through the batch in micro-batches.

    python -m experiments.step_bytes.micro_batches

Steps of DLRM-DCNv2 and DLRMv4 are compiled for one CPU device, from shapes alone.
"""

from __future__ import annotations

import argparse

import optax
from flax import nnx

import embark_jax as ej
from embark_jax import models
from embark_jax.config.models import section_of
from embark_jax.embedding.device_batch import abstract_batch, abstract_routes
from embark_jax.plans.storage import Placement
from embark_jax.train.gradients import StepOptions
from embark_jax.train.state import Optimizers, abstract_state
from embark_jax.train.step import make_train_step
from embark_jax.train.step_model import step_model

ROWS, EVENTS = 2000, 256
TABLES = ("item_id", "album_id", "artist_id")
CASES = {
    "dlrm_dcnv2": (
        section_of("dlrm_dcnv2")(
            bottom=(512, 256, 128),
            top=(1024, 1024, 512, 256, 1),
            cross_layers=3,
            cross_rank=512,
            compute_dtype="float32",
        ),
        [ej.FeatureSpec(f"t{i}") for i in range(26)],
        {"dim": 128, "dense": 13, "samples": 4096},
    ),
    "dlrm_v4": (
        section_of("dlrm_v4")(
            history={f"{name}_0": f"{name}_1" for name in TABLES},
            content="item_id_0",
            hidden=64,
            deep=128,
            layers=2,
        ),
        [ej.FeatureSpec(f"{name}_1", name) for name in TABLES]
        + [ej.FeatureSpec(f"{name}_0", name, EVENTS, "none") for name in TABLES],
        {"dim": 64, "dense": 4, "samples": 64},
    ),
}
"""Model, features, and sizes."""


def temporary_bytes(case: str, micro_batches: int) -> int:
    """Bytes of the temporaries of a case's step, which is compiled here."""
    section, features, sizes = CASES[case]
    dim, samples = sizes["dim"], sizes["samples"]
    tables = [ej.TableSpec(n, ROWS, dim) for n in sorted({f.table for f in features})]
    placed = tuple(Placement(table, "ub", 1, 1, (0,)) for table in tables)
    ids = samples * sum(feature.hotness for feature in features)
    plan = ej.Plan(tuple(features), placed, 1, 1, samples, {f"ub_{dim}": ids})
    mesh = plan.make_mesh()
    collection = ej.EmbeddingCollection(plan, mesh, implementation="xla")
    shapes = collection.output_shapes
    model = step_model(models.build(section, shapes, sizes["dense"], nnx.Rngs(0)))
    optimizers = Optimizers(optax.adagrad(0.01), ej.RowwiseAdagrad(0.1))
    state = abstract_state(model, collection, optimizers)
    options = StepOptions(micro_batches)
    step = make_train_step(model, collection, optimizers, state, options)
    batch = abstract_batch(plan, mesh, sizes["dense"])
    lowered = step.lower(state, batch, abstract_routes(collection, batch), batch)
    return lowered.compile().memory_analysis().temp_size_in_bytes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, nargs="+", default=(1, 4, 16))
    counts = parser.parse_args().cuts
    for case in CASES:
        for count in counts:
            megabytes = temporary_bytes(case, count) / 1e6
            print(f"{case}, {count} micro-batches: {megabytes:.0f} MB")
