"""Writes made-up clicks in Criteo's raw format: label, 13 counts, 26 hex categories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64
from embark_jax.data.synthetic import power_law_ids

# Different values of each category in the Kaggle data, as DLRM counts them:
# https://github.com/facebookresearch/dlrm
VALUES = (
    1_460,
    583,
    10_131_227,
    2_202_608,
    305,
    24,
    12_517,
    633,
    3,
    93_145,
    5_683,
    8_351_593,
    3_194,
    27,
    14_992,
    5_461_306,
    10,
    5_652,
    2_173,
    4,
    7_046_547,
    18,
    15,
    286_181,
    105,
    142_572,
)
EXPONENT = 1.1
MISSING = 0.1
_CHUNK_ROWS = 100_000
_HEX = np.array([f"{n:04x}".encode() for n in range(2**16)])


def write(path: Path, rows: int, seed: int = 0) -> None:
    """Writes the file; the same seed gives the same file."""
    options = pa_csv.WriteOptions(
        include_header=False, delimiter="\t", quoting_style="none"
    )
    rng, writer = np.random.default_rng(seed), None
    for start in range(0, rows, _CHUNK_ROWS):
        table = _table(rng, min(_CHUNK_ROWS, rows - start))
        if writer is None:
            writer = pa_csv.CSVWriter(str(path), table.schema, write_options=options)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _table(rng: np.random.Generator, rows: int) -> pa.Table:
    columns: list = [pa.array((rng.random(rows) < 0.26).astype(np.int8))]
    for _ in range(13):
        counts = np.floor(rng.lognormal(2, 2, rows)).astype(np.int64) - 1
        columns.append(pa.array(counts, mask=rng.random(rows) < MISSING))
    for number, values in enumerate(VALUES):
        ids = power_law_ids(rng.random(rows), values, EXPONENT)
        hashed = splitmix64((ids.astype(np.uint64) + number * 2**40) * GOLDEN_GAMMA)
        halves = (hashed >> np.uint64(32)).astype(np.uint32).view(np.uint16)
        digits = np.ascontiguousarray(_HEX[halves].reshape(rows, 2)).view("S8").ravel()
        missing = rng.random(rows) < MISSING
        columns.append(pa.array(digits, mask=missing).cast(pa.string()))
    return pa.table(columns, [f"c{i}" for i in range(len(columns))])
