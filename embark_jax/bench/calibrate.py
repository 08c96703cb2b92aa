"""Measures the rates that the cost model needs, on the devices of this machine.

All devices work at once, so the measurement shares what they share, such as the memory
bus of host devices. Times are medians after a warm-up.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from embark_jax.plans import traffic

AXIS = "device"
ROW_FLOATS = 128
LAYER = (512, 512)
"""Widths of the input and output of a layer like those of EMBark's models."""
SHORT, LONG = 2, 10
"""Collectives in a chain. The difference of two chains excludes a program's launch."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much to measure, over all devices together.

    Attributes:
      table_bytes: size of the array that is copied and whose rows are read and written.
      rows: number of rows that are looked up and updated.
      keys: number of keys that are sorted.
      matrix: side of the square matrices, on each device.
      batch: rows of the input of a layer, on each device.
      exchanged_bytes: size of the buffer of a large collective.
      repeats: number of timed repetitions; a result is their median.
    """

    table_bytes: int
    rows: int
    keys: int
    matrix: int
    batch: int
    exchanged_bytes: int
    repeats: int = 7

    def scaled(self, share: float) -> Sizes:
        """These sizes times ``share``, with the same number of repeats."""
        sizes = dataclasses.asdict(self)
        repeats = sizes.pop("repeats")
        scaled = {name: max(int(size * share), 1) for name, size in sizes.items()}
        return Sizes(**scaled, repeats=repeats)


CPU_SIZES = Sizes(2**29, 2**19, 2**22, matrix=1024, batch=2048, exchanged_bytes=2**26)
GPU_SIZES = Sizes(2**33, 2**22, 2**26, matrix=8192, batch=65536, exchanged_bytes=2**30)
"""These sizes exceed any cache, and take long enough that launches do not count."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """What one device achieves while all work; collectives are None on a single device.

    Bytes of memory count what is read and what is written; bytes of collectives count
    what a device sends. Latencies are those of collectives of a few bytes.
    """

    copy_bytes_per_s: float
    gather_bytes_per_s: float
    scatter_bytes_per_s: float
    matmul_flops_per_s: float
    layer_flops_per_s: float
    sort_keys_per_s: float
    all_to_all_bytes_per_s: float | None = None
    all_reduce_bytes_per_s: float | None = None
    all_to_all_us: float | None = None
    all_reduce_us: float | None = None


def measure(sizes: Sizes, say: Callable[[str], None] = lambda _: None) -> Rates:
    """Measures all devices of this process group.

    Args:
      sizes: how much to measure.
      say: called with the name of the next measurement.
    """
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))
    bench = _Bench(mesh, sizes)
    measurements: dict[str, Callable[[], dict[str, float]]] = {
        "copy": bench.copy,
        "rows read": bench.gather,
        "rows written": bench.scatter,
        "matrix products": bench.matmul,
        "sort": bench.sort,
    }
    if mesh.size > 1:
        measurements |= {"all-to-all": bench.all_to_all, "all-reduce": bench.all_reduce}
    rates: dict[str, float] = {}
    for name, measure in measurements.items():
        say(name)
        rates |= measure()
    return Rates(**rates)


class _Bench:
    """The measurements; each returns its fields of ``Rates``."""

    def __init__(self, mesh: Mesh, sizes: Sizes):
        self.mesh = mesh
        self.sizes = sizes
        self.devices = mesh.size
        self.table_rows = max(sizes.table_bytes // (4 * ROW_FLOATS * self.devices), 1)
        self.local_rows = max(min(sizes.rows // self.devices, self.table_rows), 1)

    def copy(self) -> dict[str, float]:
        """Copies in place, so that no fresh memory is touched."""
        seconds = self._donated_seconds(jnp.negative)
        return {"copy_bytes_per_s": 2 * self._table_bytes() / seconds}

    def gather(self) -> dict[str, float]:
        table, ids = self._array(self.table_rows, ROW_FLOATS), self._ids()
        take = self._on_each(lambda table, ids: table[ids])
        moved_bytes = 2 * self.local_rows * ROW_FLOATS * 4
        return {"gather_bytes_per_s": moved_bytes / self._seconds(take, table, ids)}

    def scatter(self) -> dict[str, float]:
        """Updates rows in place, as a step does."""
        ids, rows = self._ids(), self._array(self.local_rows, ROW_FLOATS)
        seconds = self._donated_seconds(
            lambda table, ids, rows: table.at[ids].add(rows, unique_indices=True),
            ids,
            rows,
        )
        # A row of the update is read, and one of the table read and written.
        moved_bytes = 3 * self.local_rows * ROW_FLOATS * 4
        return {"scatter_bytes_per_s": moved_bytes / seconds}

    def matmul(self) -> dict[str, float]:
        """Multiplies in bfloat16 on GPUs, like their datasheets; float32 on CPUs."""
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        dtype = jnp.float32 if on_cpu else jnp.bfloat16
        multiply = self._on_each(jnp.matmul)

        def flops_per_s(rows: int, inner: int, columns: int) -> float:
            a = self._array(rows, inner, dtype)
            b = self._array(inner, columns, dtype)
            return 2 * rows * inner * columns / self._seconds(multiply, a, b)

        side = self.sizes.matrix
        return {
            "matmul_flops_per_s": flops_per_s(side, side, side),
            "layer_flops_per_s": flops_per_s(self.sizes.batch, *LAYER),
        }

    def sort(self) -> dict[str, float]:
        keys = max(self.sizes.keys // self.devices, 1)
        drawn = np.random.default_rng(0).integers(2**31, size=keys * self.devices)
        array = self._put(drawn.astype(np.uint32))
        seconds = self._seconds(self._on_each(jnp.sort), array)
        return {"sort_keys_per_s": keys / seconds}

    def all_to_all(self) -> dict[str, float]:
        def exchange(x):
            return jax.lax.all_to_all(x, AXIS, 0, 0, tiled=True) + 1

        rate, latency_us = self._collective(exchange, traffic.all_to_all_bytes)
        return {"all_to_all_bytes_per_s": rate, "all_to_all_us": latency_us}

    def all_reduce(self) -> dict[str, float]:
        def reduce(x):
            return jax.lax.psum(x, AXIS) / self.devices

        rate, latency_us = self._collective(reduce, traffic.all_reduce_bytes)
        return {"all_reduce_bytes_per_s": rate, "all_reduce_us": latency_us}

    def _collective(
        self,
        collective: Callable[[jax.Array], jax.Array],
        sent: Callable[[float, int, int], traffic.LinkBytes],
    ) -> tuple[float, float]:
        """``(bytes per second that a device sends, µs of a small collective)``."""
        tiny, large = (
            self._array(max(size // (4 * self.devices), 1) * self.devices, 1)
            for size in (0, self.sizes.exchanged_bytes // self.devices)
        )
        seconds = []
        for array in (tiny, large):
            short, long = (
                self._seconds(self._on_each(_chain(collective, length)), array)
                for length in (SHORT, LONG)
            )
            # Noise must not make it negative: each collective takes some time.
            seconds.append(max((long - short) / (LONG - SHORT), long / LONG / 10))
        sent_bytes = sent(self._local_bytes(large), 1, self.devices).node_link
        return sent_bytes / seconds[1], 1e6 * seconds[0]

    def _on_each(self, function: Callable) -> Callable:
        """A function that each device applies to its own parts."""
        return jax.jit(
            jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=P(AXIS),
                out_specs=P(AXIS),
                check_vma=False,
            )
        )

    def _seconds(self, function: Callable, *arguments: jax.Array) -> float:
        jax.block_until_ready(function(*arguments))  # compiles
        jax.block_until_ready(function(*arguments))
        times = []
        for _ in range(self.sizes.repeats):
            start = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _donated_seconds(self, function: Callable, *arguments: jax.Array) -> float:
        """The time of a function that updates the table, its first argument."""
        update = jax.jit(self._on_each(function), donate_argnums=0)
        table = self._array(self.table_rows, ROW_FLOATS)

        def once() -> jax.Array:
            nonlocal table
            table = update(table, *arguments)
            return table

        return self._seconds(once)

    def _table_bytes(self) -> int:
        return self.table_rows * ROW_FLOATS * 4

    def _array(self, rows: int, columns: int, dtype=jnp.float32) -> jax.Array:
        """An array of ones, ``[rows, columns]`` on each device."""
        shape = (rows * self.devices, columns)
        make = jax.jit(lambda: jnp.ones(shape, dtype), out_shardings=self._sharding())
        return make()

    def _ids(self) -> jax.Array:
        """Unique random row numbers of a table, on each device."""
        rng = np.random.default_rng(0)
        ids = [
            rng.choice(self.table_rows, self.local_rows, replace=False)
            for _ in range(self.devices)
        ]
        return self._put(np.concatenate(ids).astype(np.int32))

    def _put(self, array: np.ndarray) -> jax.Array:
        return jax.device_put(array, self._sharding())

    def _sharding(self) -> NamedSharding:
        return NamedSharding(self.mesh, P(AXIS))

    def _local_bytes(self, array: jax.Array) -> int:
        return array.nbytes // self.devices


def _chain(function: Callable, length: int) -> Callable:
    def repeated(x):
        for _ in range(length):
            x = function(x)
        return x

    return repeated
