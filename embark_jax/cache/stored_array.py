"""What checkpoints see of rows that lie in host memory, or in a file mapped to it.

Rows of cached tables are saved and restored where all of them have room: a checkpoint
sees them as if devices had them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Sharding


class StoredShard(NamedTuple):
    """A block: ``data`` is ``[rows, width]``, in place; ``index`` is its position in
    the array; ``device`` is the one whose rows these are, and no other has them."""

    device: Any
    index: tuple[slice, ...]
    data: np.ndarray
    replica_id: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class StoredArray:
    """The part of ``jax.Array``'s interface that checkpoints use.

    Attributes:
      shape: ``[rows of all devices, width]``.
      sharding: says which rows belong to which device.
      blocks: blocks of the devices of this process.
    """

    shape: tuple[int, int]
    sharding: Sharding
    blocks: Mapping[Any, np.ndarray]

    @property
    def dtype(self) -> np.dtype:
        return next(iter(self.blocks.values())).dtype

    @property
    def addressable_shards(self) -> list[StoredShard]:
        where = self.sharding.addressable_devices_indices_map(self.shape)
        return [
            StoredShard(device, where[device] or (), block)
            for device, block in self.blocks.items()
        ]
