"""Code that the Mosaic GPU kernels share: rows in registers, launching, the
interpreter.

A block is one warpgroup, 128 threads that run as one: scalars are the same in all
threads, and a row is spread over them. Rows are read straight into registers, with a
scalar run-time index; several independent reads in a row keep memory busy.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

COMPILER_PARAMS = plgpu.CompilerParams(
    lowering_semantics=plgpu.LoweringSemantics.Warpgroup
)
WARPGROUP = 128  # threads
WARP = 32  # threads
SMALLEST_NORMAL = float(jnp.finfo(jnp.float32).tiny)
PAIR = 2  # neighbours that a thread reads at once: 4 bytes in bfloat16

_plgpu: Any = plgpu  # some names and parameters exist only in some versions of JAX
# In jax 0.10, plgpu.load takes an index, and a plain store suits any layout.
_load_takes_index = "idx" in inspect.signature(plgpu.load).parameters
_interpreted = False


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Runs kernels that are traced inside in Pallas' interpreter, on CPU: for tests."""
    global _interpreted
    _interpreted = True
    try:
        yield
    finally:
        _interpreted = False


def launch_options() -> dict[str, Any]:
    """Returns keyword arguments for ``plgpu.kernel`` and ``pl.kernel``."""
    if not _interpreted:
        return {"compiler_params": COMPILER_PARAMS}
    if hasattr(plgpu, "InterpretGPUParams"):
        params = _plgpu.InterpretGPUParams
    else:  # jax 0.10
        from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

        params = InterpretGPUParams
    return {"compiler_params": COMPILER_PARAMS, "interpret": params()}


def moves(reads_bytes: int, writes_bytes: int) -> Any:
    """A scope that puts into a kernel's name what it moves in device memory if every
    entry is used. A compiled program shows nothing else of a kernel."""
    return jax.named_scope(f"reads {reads_bytes} writes {writes_bytes} bytes")


class Rows:
    """Reads and writes rows of width ``width``, in one layout for all dtypes.

    A multiple of 128 is spread over the warpgroup. Any other width is spread over one
    warp, and all four warps do the same work; rows are still read from memory once.
    """

    def __init__(self, width: int):
        self.width = width
        self._layout = None if _interpreted else _narrow_layout(width)

    def load(self, ref: Any, row: jax.Array) -> jax.Array:
        """``[width]`` float32."""
        if self._layout is None:
            values = ref[row]
        elif _load_takes_index:
            values = _plgpu.load(ref, (row,), layout=self._layout, optimized=False)
        else:
            values = _plgpu.load(ref.at[row], layout=self._layout, optimized=False)
        return values.astype(jnp.float32)

    def store(self, ref: Any, row: jax.Array, values: jax.Array) -> None:
        """Writes ``[width]`` values, rounded to the dtype of ``ref``."""
        values = values.astype(ref.dtype)
        if self._layout is None or _load_takes_index:
            ref[row] = values
        else:
            _plgpu.store(ref.at[row], values, optimized=False)

    def load_any(self, ref: Any, row: jax.Array) -> jax.Array:
        """A row, or the scalar that ``ref`` has for it."""
        return ref[row, 0] if ref.shape[1] == 1 else self.load(ref, row)

    def store_any(self, ref: Any, row: jax.Array, values: jax.Array) -> None:
        """Writes a row, or the scalar that ``ref`` has for it."""
        if ref.shape[1] == 1:
            ref[row, 0] = values
        else:
            self.store(ref, row, values)

    def zeros(self) -> jax.Array:
        """``[width]`` float32."""
        zeros = jnp.zeros((self.width,), jnp.float32)
        return zeros if self._layout is None else plgpu.layout_cast(zeros, self._layout)

    def fill(self, scalar: jax.Array) -> jax.Array:
        """``[width]`` copies of a scalar; Mosaic does not broadcast implicitly."""
        return jnp.broadcast_to(scalar, (self.width,))


class Tile:
    """Compares ``size`` values with ``size`` others, each as a column with each as a
    row. ``size`` is a multiple of 64."""

    def __init__(self, size: int):
        self.shape = (size, size)

    def load_columns(self, ref: Any, first: int | jax.Array) -> jax.Array:
        """``[size]`` values of a ref from ``first`` on, one for each column."""
        place = pl.ds(first, self.shape[0])
        if _interpreted:
            return ref[place]
        layout = plgpu.Layout.WGMMA.reduce(0)
        if _load_takes_index:
            return _plgpu.load(ref, (place,), layout=layout, optimized=False)
        return _plgpu.load(ref.at[place], layout=layout, optimized=False)

    def spread(self, columns: jax.Array) -> jax.Array:
        """``[size, size]``: the same columns in each row."""
        return lax.broadcast_in_dim(columns, self.shape, (1,))

    def index(self, axis: int) -> jax.Array:
        """``[size, size]`` int32 index of the row (axis 0) or of the column (1)."""
        if _interpreted:
            return lax.broadcasted_iota(jnp.int32, self.shape, axis)
        layout = plgpu.Layout.WGMMA
        return plgpu.broadcasted_iota(jnp.int32, self.shape, axis, layout=layout)

    def sum_rows(self, values: jax.Array) -> jax.Array:
        """``[size]``: the sum of each row."""
        return values.sum(axis=1)


def is_inside(index: jax.Array, size: jax.typing.ArrayLike) -> jax.Array:
    """Whether ``0 <= index < size``, in one comparison; ``size`` is not negative."""
    return index.astype(jnp.uint32) < jnp.asarray(size).astype(jnp.uint32)


def all_have_read() -> None:
    """Makes all threads of the block wait until all have finished their reads, so that
    what follows may write there. Every thread reads a scalar, and a store of it waits
    for none of them."""
    plgpu.commit_smem()  # a barrier


def sqrt(x: jax.Array) -> jax.Array:
    """The square root of numbers >= 0; Mosaic has none for warpgroups."""
    return x * lax.rsqrt(
        jnp.maximum(x, SMALLEST_NORMAL)
    )  # gives 0 for 0, not 0 times inf


def run_in_place(
    body: Callable[..., None],
    updated: list[jax.Array],
    read: list[jax.Array],
    blocks: int,
) -> list[jax.Array]:
    """Runs ``body(updated refs, *read refs)`` in each block, and returns ``updated``.

    Donated arrays are updated in place, others are copied first.
    """
    refs = [jax.new_ref(array, memory_space=plgpu.GMEM) for array in updated]
    mesh = plgpu.Mesh(grid=(blocks,), grid_names=("block",))
    pl.kernel(
        lambda *read_refs: body(refs, *read_refs),
        out_type=(),
        mesh=mesh,
        name=body.__name__,
        **launch_options(),
    )(*read)
    return [jax.freeze(ref) for ref in refs]


def _narrow_layout(width: int) -> Any:
    if width % WARPGROUP == 0:
        return None
    lanes = math.gcd(width // PAIR, WARP)
    copies = [] if lanes == WARP else [plgpu.Replicated(WARP // lanes)]
    return plgpu.Layout.TILED(
        plgpu.Tiling(((lanes * PAIR,), (PAIR,))),
        warp_dims=(plgpu.Replicated(WARPGROUP // WARP),),
        lane_dims=(*copies, -2),
        vector_dim=-1,
    )
