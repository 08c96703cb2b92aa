"""The cost that EMBark's released planner searches with."""

from __future__ import annotations

import dataclasses

import numpy as np

from embark_jax.planner.cost.model import StoragePrice
from embark_jax.planner.cost.shapes import Shapes
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.options import Cluster
from embark_jax.plans.storage import StorageKind


@dataclasses.dataclass(frozen=True)
class EmbarkModel:
    """The cost that EMBark's released planner searches with, for RB shards only.

    ``W · B · Σ hotness · width / row shards + R · B · Σ width`` over the shards of a
    device, where B is the global batch; between nodes the first term is divided by 8,
    the second multiplied by 1.5 / 8 (HugeCTR, ``benchmarks/embedding_collection``). W
    and R weigh bytes of memory and of links against each other; a weighted byte takes
    as long as one of device memory. Skew, ids, latency and padding are left out.
    """

    workload: Workload
    memory_weight: float = 4.0
    link_weight: float = 50.0
    """R; published values are 50 to 80."""
    name = "embark"

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        return ("rb",)

    def storage_price(self, storage: StorageKind) -> StoragePrice:
        return StoragePrice()

    def owner_ms(self, shapes: Shapes) -> np.ndarray:
        hierarchical = self.workload.fleet.nodes > 1
        lookup_share, link_share = (1 / 8, 1.5 / 8) if hierarchical else (1.0, 1.0)
        weighted_bytes = (
            self.workload.batch_size
            * shapes.width
            * (
                self.memory_weight * lookup_share * shapes.hotness / shapes.row_shards
                + self.link_weight * link_share * shapes.bags
            )
        )
        rate = self.workload.fleet.device.memory_bytes_per_s
        ms = (1e3 * weighted_bytes / rate)[shapes.shape]
        none = np.zeros_like(ms)
        return np.stack([none, none, ms, none])

    def everywhere_ms(self, shapes: Shapes) -> np.ndarray:
        return np.zeros(len(shapes))
