"""Measures the rates that the cost model needs, on the devices of this machine.

All devices work at once, so the measurement shares what they share, such as the memory
bus of host devices. Times are medians after a warm-up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from embark_jax.bench.timing import median_s
from embark_jax.plans import traffic

AXIS = "device"
ROW_FLOATS = 128
ROW_BYTES = 4 * ROW_FLOATS
LAYER = (512, 512)
"""Widths of the input and output of a layer like those of EMBark's models."""
WARM_UPS = 2
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
      calls: number of calls in a repetition, one behind the other: on a GPU to launch
        one and to wait for it takes some 0.5 ms.
    """

    table_bytes: int
    rows: int
    keys: int
    matrix: int
    batch: int
    exchanged_bytes: int
    repeats: int = 7
    calls: int = 1

    def scaled(self, share: float) -> Sizes:
        """These sizes times ``share``, with the same number of repeats and calls."""
        sizes = dataclasses.asdict(self)
        same = {name: sizes.pop(name) for name in ("repeats", "calls")}
        scaled = {name: max(int(size * share), 1) for name, size in sizes.items()}
        return Sizes(**scaled, **same)


CPU_SIZES = Sizes(2**29, 2**19, 2**22, matrix=1024, batch=2048, exchanged_bytes=2**26)
GPU_SIZES = Sizes(
    2**33, 2**22, 2**26, matrix=8192, batch=65536, exchanged_bytes=2**30, calls=16
)
"""These sizes exceed any cache."""


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
        self.mesh, self.sizes, self.devices = mesh, sizes, mesh.size
        self.sharding = NamedSharding(mesh, P(AXIS))
        self.table_rows = max(sizes.table_bytes // (ROW_BYTES * self.devices), 1)
        self.local_rows = max(min(sizes.rows // self.devices, self.table_rows), 1)

    def copy(self) -> dict[str, float]:
        """Copies in place, so that no fresh memory is touched."""
        seconds = self._update_s(jnp.negative)
        return {"copy_bytes_per_s": 2 * self.table_rows * ROW_BYTES / seconds}

    def gather(self) -> dict[str, float]:
        table = self._ones(self.table_rows, ROW_FLOATS)
        seconds = self._call_s(lambda table, ids: table[ids], table, self._ids())
        return {"gather_bytes_per_s": 2 * self.local_rows * ROW_BYTES / seconds}

    def scatter(self) -> dict[str, float]:
        """Updates rows in place, as a step does: a row of the update is read, and one
        of the table read and written."""
        seconds = self._update_s(
            lambda table, ids, rows: table.at[ids].add(rows, unique_indices=True),
            self._ids(),
            self._ones(self.local_rows, ROW_FLOATS),
        )
        return {"scatter_bytes_per_s": 3 * self.local_rows * ROW_BYTES / seconds}

    def matmul(self) -> dict[str, float]:
        """Multiplies in bfloat16 on GPUs, like their datasheets; float32 on CPUs."""
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        dtype = jnp.float32 if on_cpu else jnp.bfloat16

        def flops_per_s(rows: int, inner: int, columns: int) -> float:
            a, b = self._ones(rows, inner, dtype), self._ones(inner, columns, dtype)
            return 2 * rows * inner * columns / self._call_s(jnp.matmul, a, b)

        side = self.sizes.matrix
        return {
            "matmul_flops_per_s": flops_per_s(side, side, side),
            "layer_flops_per_s": flops_per_s(self.sizes.batch, *LAYER),
        }

    def sort(self) -> dict[str, float]:
        keys = max(self.sizes.keys // self.devices, 1)
        drawn = np.random.default_rng(0).integers(2**31, size=keys * self.devices)
        array = jax.device_put(drawn.astype(np.uint32), self.sharding)
        return {"sort_keys_per_s": keys / self._call_s(jnp.sort, array)}

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
        """Returns ``(bytes per second that a device sends, µs of a small
        collective)``."""
        tiny, large = (
            self._ones(max(size // (4 * self.devices), 1) * self.devices, 1)
            for size in (0, self.sizes.exchanged_bytes // self.devices)
        )
        seconds = []
        for array in (tiny, large):
            short, long = (
                self._call_s(_chain(collective, length), array)
                for length in (SHORT, LONG)
            )
            # Noise must not make it negative: each collective takes some time.
            seconds.append(max((long - short) / (LONG - SHORT), long / LONG / 10))
        sent_bytes = sent(large.nbytes // self.devices, 1, self.devices).node_link
        return sent_bytes / seconds[1], 1e6 * seconds[0]

    def _on_each(self, function: Callable) -> Callable:
        """Returns a function that each device applies to its own parts."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=P(AXIS),
            out_specs=P(AXIS),
            check_vma=False,
        )

    def _call_s(self, function: Callable, *arguments: jax.Array) -> float:
        """Returns the time that all devices take to apply it to their own parts."""
        call = jax.jit(self._on_each(function))
        return self._median_s(lambda: call(*arguments))

    def _update_s(self, function: Callable, *arguments: jax.Array) -> float:
        """Returns the time of a function that updates the table, its first
        argument."""
        update = jax.jit(self._on_each(function), donate_argnums=0)
        table = self._ones(self.table_rows, ROW_FLOATS)

        def once() -> jax.Array:
            nonlocal table
            table = update(table, *arguments)
            return table

        return self._median_s(once)

    def _median_s(self, call: Callable[[], jax.Array]) -> float:
        calls = self.sizes.calls

        def all_calls():
            for _ in range(calls):
                result = call()
            return result

        return median_s(all_calls, self.sizes.repeats, WARM_UPS) / calls

    def _ones(self, rows: int, columns: int, dtype=jnp.float32) -> jax.Array:
        """Returns an array of ones, ``[rows, columns]`` on each device."""
        shape = rows * self.devices, columns
        return jnp.ones(shape, dtype, device=self.sharding)

    def _ids(self) -> jax.Array:
        """Returns unique random row numbers of a table, on each device."""
        rng = np.random.default_rng(0)
        ids = [
            rng.choice(self.table_rows, self.local_rows, replace=False)
            for _ in range(self.devices)
        ]
        return jax.device_put(np.concatenate(ids).astype(np.int32), self.sharding)


def _chain(function: Callable, length: int) -> Callable:
    def repeated(x):
        for _ in range(length):
            x = function(x)
        return x

    return repeated
