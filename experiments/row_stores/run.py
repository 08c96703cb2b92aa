"""Random reads and writes of 512-byte rows: NumPy memory maps beside key-value stores.

Needs ``numpy rocksdict lmdb tensorstore``; writes ``results.json`` beside itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from embark_jax.cache.row_store import make_store

WIDTH = 128
ROW_BYTES = 4 * WIDTH
FILL_ROWS = 1 << 16


class MemoryMap:
    """One thread on a plain file."""

    def __init__(self, folder: Path, rows: int):
        with open(folder / "rows", "wb+") as file:
            os.posix_fallocate(file.fileno(), 0, rows * ROW_BYTES)
            self.data = np.memmap(file, np.float32, "r+", shape=(rows, WIDTH))

    def read(self, keys):
        return self.data[keys]

    def write(self, keys, rows):
        self.data[keys] = rows

    def settle(self):
        os.sync()


class OwnStore:
    """The row store of tier disk: a log, with reading threads."""

    def __init__(self, folder: Path, rows: int):
        self._store = make_store("disk", rows, WIDTH, folder)
        self.read, self.write = self._store.read, self._store.write

    def settle(self):
        os.sync()


class Lmdb:
    def __init__(self, folder: Path, rows: int):
        import lmdb

        size = rows * ROW_BYTES * 4
        self._env = lmdb.open(
            str(folder / "lmdb"), size, writemap=True, sync=False, metasync=False
        )

    def read(self, keys):
        with self._env.begin(buffers=True) as txn:
            values = [txn.get(key) for key in _bytes(keys)]
            return np.stack([np.frombuffer(value, np.float32) for value in values])

    def write(self, keys, rows):
        with self._env.begin(write=True) as txn:
            for key, row in zip(_bytes(keys), rows, strict=True):
                txn.put(key, row.tobytes())

    def settle(self):
        self._env.sync(True)


class RocksDB:
    def __init__(self, folder: Path, rows: int):
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.increase_parallelism(os.cpu_count() or 1)
        self._batch = rocksdict.WriteBatch
        self._no_log = rocksdict.WriteOptions()
        self._no_log.disable_wal = True
        self._db = rocksdict.Rdict(str(folder / "rocks"), options)

    def read(self, keys):
        values = self._db[list(_bytes(keys))]
        return np.stack([np.frombuffer(value, np.float32) for value in values])

    def write(self, keys, rows):
        batch = self._batch(raw_mode=True)
        for key, row in zip(_bytes(keys), rows, strict=True):
            batch.put(key, row.tobytes())
        self._db.write(batch, self._no_log)

    def settle(self):
        self._db.flush()


class TensorStore:
    """Chunks of 8 rows, a page each, 4,096 of them in a file."""

    def __init__(self, folder: Path, rows: int):
        import tensorstore

        inner = {"name": "sharding_indexed", "configuration": {}}
        inner["configuration"] = {
            "chunk_shape": [8, WIDTH],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }
        self._array = tensorstore.open(
            {
                "driver": "zarr3",
                "kvstore": {"driver": "file", "path": str(folder / "zarr")},
                "metadata": {
                    "shape": [rows, WIDTH],
                    "data_type": "float32",
                    "chunk_grid": {
                        "name": "regular",
                        "configuration": {"chunk_shape": [1 << 15, WIDTH]},
                    },
                    "codecs": [inner],
                },
                "create": True,
            }
        ).result()

    def read(self, keys):
        return self._array[keys].read().result()

    def write(self, keys, rows):
        self._array[keys].write(rows).result()

    def settle(self):
        pass


def _bytes(keys):
    return (int(key).to_bytes(8, "big") for key in keys)


STORES: dict[str, Callable] = {
    "NumPy memory map": MemoryMap,
    "row store of tier disk": OwnStore,
    "LMDB 2 (by key)": Lmdb,
    "RocksDB, rocksdict (by key)": RocksDB,
    "TensorStore, zarr3": TensorStore,
}


def measure(name: str, folder: Path, rows: int, batch: int, rounds: int) -> dict:
    rng = np.random.default_rng(0)
    store = STORES[name](folder, rows)
    began = time.perf_counter()
    for first in range(0, rows, FILL_ROWS):
        keys = np.arange(first, min(first + FILL_ROWS, rows))
        store.write(keys, np.repeat(keys[:, None], WIDTH, 1).astype(np.float32))
    found = {"fill_s": time.perf_counter() - began}
    store.settle()
    times: dict[str, list[float]] = {"read": [], "write": []}
    for _ in range(rounds):
        keys = rng.choice(rows, batch, replace=False)
        began = time.perf_counter()
        got = store.read(keys)
        middle = time.perf_counter()
        store.write(keys, got)
        times["read"].append(middle - began)
        times["write"].append(time.perf_counter() - middle)
        assert (got[:, 0] == keys.astype(np.float32)).all(), name
    for what, each in times.items():
        found[f"{what}_us_a_row"] = statistics.median(each) / batch * 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", choices=STORES, help="in a process of its own")
    given = parser.parse_args()
    rows = int(given.gigabytes * 1e9) // ROW_BYTES
    found = {}
    for name in [given.only] if given.only else STORES:
        folder = Path(tempfile.mkdtemp(dir=given.folder))
        try:
            found[name] = measure(name, folder, rows, given.batch, given.rounds)
        finally:
            shutil.rmtree(folder)
        print(name, found[name], flush=True)
    settings = {"rows": rows, "row_bytes": ROW_BYTES, "batch": given.batch}
    out = Path(__file__).with_name("results.json")
    out.write_text(json.dumps({"settings": settings, "stores": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
