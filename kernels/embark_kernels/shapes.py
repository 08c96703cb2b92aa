"""Named shapes of lookups of published models, for tests and benchmarks.

They are the models of ``configs/models``, with all tables of one width as one table:
what a device looks up that holds all of them. DLRM-DCNv2 is cut for 8 devices, the
others for 128.
"""

from __future__ import annotations

import dataclasses

GLOBAL_BATCH = 65_536


@dataclasses.dataclass(frozen=True)
class LookupShape:
    """Sizes for ``pooled_lookup``, and for the corresponding update.

    Attributes:
      rows, width: size of the table.
      batch: number of lines of ids.
      hotness: lengths of the bags of a line.
    """

    rows: int
    width: int
    batch: int
    hotness: tuple[int, ...]

    @property
    def ids(self) -> int:
        """The number of ids of a batch."""
        return self.batch * sum(self.hotness)

    def within(self, table_bytes: int, ids: int) -> LookupShape:
        """Cuts the shape to so many bytes of float32 rows and ids of a batch."""
        rows = min(self.rows, max(1, table_bytes // (4 * self.width)))
        batch = min(self.batch, max(1, ids // sum(self.hotness)))
        return dataclasses.replace(self, rows=rows, batch=batch)


def _shape(rows: int, width: int, devices: int, *bags: tuple[int, int]) -> LookupShape:
    """Makes a shape of ``(count, hotness)`` pairs in the order of the model's
    tables."""
    hotness = tuple(length for count, length in bags for _ in range(count))
    return LookupShape(rows, width, GLOBAL_BATCH // devices, hotness)


SHAPES = {
    "dlrm_dcnv2 128": _shape(
        204_184_588,
        128,
        8,
        (1, 3),
        (1, 2),
        (1, 1),
        (1, 2),
        (1, 6),
        (4, 1),
        (1, 7),
        (1, 3),
        (1, 8),
        (1, 1),
        (1, 6),
        (1, 9),
        (1, 5),
        (3, 1),
        (1, 12),
        (1, 100),
        (1, 27),
        (1, 10),
        (1, 3),
        (2, 1),
    ),
    "t180 32": _shape(750_000_000, 32, 128, (5, 50), (1, 100)),
    "t180 64": _shape(
        200_510_000, 64, 128, (5, 50), (5, 30), (10, 10), (5, 100), (40, 200)
    ),
    "t180 128": _shape(
        130_470_100, 128, 128, (5, 100), (20, 50), (30, 30), (20, 20), (21, 100)
    ),
    "t180 256": _shape(50_000_000, 256, 128, (10, 20)),
    "t200 64": _shape(40_000_000, 64, 128, (20, 10)),
    "t200 128": _shape(
        791_421_000,
        128,
        128,
        (20, 1),
        (10, 5),
        (10, 20),
        (20, 100),
        (80, 1),
        (10, 20),
        (10, 30),
        (10, 50),
        (10, 100),
    ),
    "t510 128": _shape(895_100_000, 128, 128, (470, 1), (20, 10), (20, 100)),
    "t7 32": _shape(5_000_000_000, 32, 128, (1, 40)),
    "t7 64": _shape(410_000_000, 64, 128, (1, 20), (1, 1)),
    "t7 128": _shape(2_010_000_000, 128, 128, (1, 20), (2, 1)),
    "t7 256": _shape(10_000_000, 256, 128, (1, 80)),
}
"""The shapes by model and width."""
