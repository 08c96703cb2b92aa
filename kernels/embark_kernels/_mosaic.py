"""Code that the Mosaic GPU kernels share: rows in registers, sizes of blocks,
launching, the interpreter.

A program is what runs as one: scalars are the same in all its threads, and a row is
spread over them. It is a warp, one of four in a block: all of its threads execute what
is done for each id, so that fewer threads with more of a row each do it less often.
Rows are read straight into registers, with a scalar run-time index; several
independent reads in a row keep memory busy.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

from embark_kernels.rounding import column_noise, random_bits, round_stochastically

COMPILER_PARAMS = plgpu.CompilerParams(
    lowering_semantics=plgpu.LoweringSemantics.Warpgroup
)
WARPGROUP = 128  # threads
WARP = 32  # threads
SMALLEST_NORMAL = float(jnp.finfo(jnp.float32).tiny)

_plgpu: Any = plgpu  # some names and parameters exist only in some versions of JAX
# In jax 0.10, plgpu.load must be given an index.
_index = inspect.signature(plgpu.load).parameters.get("idx")
_NO_INDEX = (None,) if _index and _index.default is inspect.Parameter.empty else ()
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


def is_interpreted() -> bool:
    """Returns whether kernels that are traced now run in the interpreter."""
    return _interpreted


def launch_options(
    compiler_params: plgpu.CompilerParams = COMPILER_PARAMS,
) -> dict[str, Any]:
    """Returns keyword arguments for ``plgpu.kernel`` and ``pl.kernel``."""
    if not _interpreted:
        return {"compiler_params": compiler_params}
    if hasattr(plgpu, "InterpretGPUParams"):
        params = _plgpu.InterpretGPUParams
    else:  # jax 0.10
        from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

        params = InterpretGPUParams
    return {"compiler_params": compiler_params, "interpret": params()}


def load(ref: Any, layout: Any) -> jax.Array:
    """Reads an array of device or of shared memory into registers."""
    return _plgpu.load(ref, *_NO_INDEX, layout=layout, optimized=False)


def moves(reads_bytes: int, writes_bytes: int) -> Any:
    """Returns a scope that puts into a kernel's name what it moves in device memory if
    no id is padding. A compiled program shows nothing else of a kernel."""
    return jax.named_scope(f"reads {reads_bytes} writes {writes_bytes} bytes")


class Rows:
    """Reads and writes rows of width ``width``, in one layout for all dtypes.

    A row is spread over one warp, and each warp of a block is a program of its own,
    with its own rows. Mosaic takes all threads of a block for one program, so that a
    program must do nothing for which Mosaic makes the block wait, such as storing a
    vector by assignment.
    """

    def __init__(self, width: int):
        self.width = width
        self._layout = None if _interpreted else _layout_in_warp(width)
        self.programs_per_block = 1 if _interpreted else WARPGROUP // WARP

    def kernel(
        self, body: Callable[..., None], programs: int
    ) -> tuple[Callable[..., None], int]:
        """Returns a kernel that runs ``body(program, *refs)`` for each program, and its
        number of blocks."""

        @functools.wraps(body)
        def kernel(*refs):
            block = lax.axis_index("block")
            if _interpreted:
                body(block, *refs)
            else:
                program = block * self.programs_per_block + _warp_of_block()
                pl.when(program < programs)(lambda: body(program, *refs))

        return kernel, pl.cdiv(programs, self.programs_per_block)

    def all_have_read(self) -> None:
        """Makes all threads of the program wait until all have finished their reads, so
        that what follows may write there. Every thread reads a scalar, and a store of
        it waits for none of them."""
        if not _interpreted:
            _warp_barrier()

    def load(self, ref: Any, row: jax.Array) -> jax.Array:
        """Reads ``[width]`` values, in float32."""
        return self.load_bits(ref, row).astype(jnp.float32)

    def load_bits(self, ref: Any, row: jax.typing.ArrayLike) -> jax.Array:
        """Reads ``[width]`` values as they are stored."""
        if self._layout is None:
            return ref[row]
        return load(ref.at[row], self._layout)

    def store(self, ref: Any, row: jax.Array, values: jax.Array) -> None:
        """Writes ``[width]`` values, rounded to the dtype of ``ref``."""
        values = values.astype(ref.dtype)
        if self._layout is None:
            ref[row] = values
        else:
            types = plgpu.RefType(), self._layout
            plgpu.inline_mgpu(arg_types=types)(_store)(ref.at[row], values)

    def noises(self, noise: jax.Array | None) -> list[jax.Array]:
        """Returns the arrays that ``rounded`` reads: ``noise`` and that of columns."""
        if noise is None:
            return []
        columns = jnp.arange(self.width, dtype=jnp.int32)
        return [noise, column_noise(columns)[None]]

    def rounded(self, values: jax.Array, refs: Any, index: jax.Array) -> jax.Array:
        """Returns ``[width]`` values to store in a row of bfloat16: rounded
        stochastically if there are refs of ``noises``, with the noise at ``index``."""
        if not refs:
            return values
        noise_ref, columns_ref = refs
        noise = self.fill(noise_ref[index]) + self.load_bits(columns_ref, 0)
        return round_stochastically(values, random_bits(noise), jnp.bfloat16)

    def load_any(self, ref: Any, row: jax.Array) -> jax.Array:
        """Reads a row, or the scalar that ``ref`` has for it."""
        return ref[row, 0] if ref.shape[1] == 1 else self.load(ref, row)

    def store_any(self, ref: Any, row: jax.Array, values: jax.Array) -> None:
        """Writes a row, or the scalar that ``ref`` has for it."""
        if ref.shape[1] == 1:
            ref[row, 0] = values
        else:
            self.store(ref, row, values)

    def zeros(self) -> jax.Array:
        """Returns ``[width]`` zeros in float32."""
        zeros = jnp.zeros((self.width,), jnp.float32)
        return zeros if self._layout is None else plgpu.layout_cast(zeros, self._layout)

    def fill(self, scalar: jax.Array | float) -> jax.Array | float:
        """Returns ``[width]`` copies of a scalar; Mosaic broadcasts only numbers of
        Python implicitly."""
        if isinstance(scalar, float):
            return scalar
        return jnp.broadcast_to(scalar, (self.width,))


class Tile:
    """Compares ``size`` values with ``size`` others, each as a column with each as a
    row. ``size`` is a multiple of 64."""

    def __init__(self, size: int):
        self.shape = (size, size)

    def load_columns(self, ref: Any, first: int | jax.Array) -> jax.Array:
        """Reads ``[size]`` values of a ref from ``first`` on, one for each column."""
        columns = pl.ds(first, self.shape[0])
        if _interpreted:
            return ref[columns]
        return load(ref.at[columns], plgpu.Layout.WGMMA.reduce(0))

    def spread(self, columns: jax.Array) -> jax.Array:
        """Returns ``[size, size]``, the same columns in each row."""
        return lax.broadcast_in_dim(columns, self.shape, (1,))

    def index(self, axis: int) -> jax.Array:
        """Returns ``[size, size]`` int32 indices of rows (axis 0) or of columns (1)."""
        if _interpreted:
            return lax.broadcasted_iota(jnp.int32, self.shape, axis)
        layout = plgpu.Layout.WGMMA
        return plgpu.broadcasted_iota(jnp.int32, self.shape, axis, layout=layout)

    def sum_rows(self, values: jax.Array) -> jax.Array:
        """Sums each row."""
        return values.sum(axis=1)


def lookup_blocks(width: int, ids: int, bags: int) -> tuple[int, int]:
    """Returns how many bags a program sums, some 128 ids, and how many rows it reads
    before it adds them up."""
    ids_per_bag = max(1, ids // max(1, bags))
    return max(1, min(64, 128 // ids_per_bag)), _rows_in_flight(width, 32)


def update_blocks(width: int) -> tuple[int, int]:
    """Returns how many rows a program updates, and how many it reads before it updates
    them: fewer than in a lookup, since each has a gradient and states."""
    rows = _rows_in_flight(width, 16)
    return 4 * rows, rows


def _rows_in_flight(width: int, values_of_thread: int) -> int:
    """Returns for how many rows a thread holds about so many values: a power of 2."""
    _, threads = _spread(width)
    rows = values_of_thread * threads // width
    return max(2, min(16, 2 ** max(rows, 1).bit_length() // 2))


def _spread(width: int) -> tuple[int, int]:
    """Returns how many neighbours in a row a thread reads at once, and over how many
    threads of a warp they spread it."""
    neighbours = 4 if width % (4 * WARP) == 0 else 2
    return neighbours, math.gcd(width // neighbours, WARP)


def is_inside(index: jax.Array, size: jax.typing.ArrayLike) -> jax.Array:
    """Returns whether ``0 <= index < size``, in one comparison; ``size`` is not
    negative."""
    return index.astype(jnp.uint32) < jnp.asarray(size).astype(jnp.uint32)


def chunk_of(
    start: jax.Array, end: jax.Array, size: int, count: int
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Returns ``size`` consecutive indices below ``count``, and which of them are in
    the range from ``start`` to ``end``. They begin at ``start`` or, at the end of all,
    earlier."""
    begin = jnp.minimum(start, count - size)
    indices = [begin + i for i in range(size)]
    return indices, [is_inside(index - start, end - start) for index in indices]


def rows_of_own(rows: list[jax.Array], used: list[jax.Array]) -> list[jax.Array]:
    """Replaces rows that are not used by one that is, of which there must be one. To
    read any other might be a race: its own program may be writing to it."""
    own = rows[0]
    for row, use in zip(rows, used, strict=True):
        own = jnp.where(use, row, own)
    return [jnp.where(use, row, own) for row, use in zip(rows, used, strict=True)]


def sqrt(x: jax.Array) -> jax.Array:
    """Returns the square root of numbers >= 0; Mosaic has none for warpgroups."""
    # Gives 0 for 0, not 0 times inf.
    return x * lax.rsqrt(jnp.maximum(x, SMALLEST_NORMAL))


def run(
    body: Callable[..., None],
    out_type: jax.ShapeDtypeStruct,
    read: list[jax.Array],
    rows: Rows,
    programs: int,
) -> jax.Array:
    """Runs ``body(program, *read refs, out ref)`` for each program, and returns what
    they wrote."""
    kernel, blocks = rows.kernel(body, programs)
    return plgpu.kernel(
        kernel,
        out_type=out_type,
        grid=(blocks,),  # one axis: the others are limited to 65,535
        grid_names=("block",),
        **launch_options(),
    )(*read)


def run_updating(
    body: Callable[..., None],
    updated: list[jax.Array],
    read: list[jax.Array],
    rows: Rows,
    programs: int,
) -> list[jax.Array]:
    """Runs ``body(program, updated refs, *read refs)`` for each program, and returns
    ``updated``.

    Donated arrays are updated in place, others are copied first.
    """
    refs = [jax.new_ref(array, memory_space=plgpu.GMEM) for array in updated]
    kernel, blocks = rows.kernel(body, programs)
    mesh = plgpu.Mesh(grid=(blocks,), grid_names=("block",))
    pl.kernel(
        lambda *read_refs: kernel(refs, *read_refs),
        out_type=(),
        mesh=mesh,
        name=body.__name__,
        **launch_options(),
    )(*read)
    return [jax.freeze(ref) for ref in refs]


def _layout_in_warp(width: int) -> Any:
    """Spreads a row over a warp. If it is too narrow for all threads, some repeat what
    others do."""
    neighbours, threads = _spread(width)
    copies = [] if threads == WARP else [plgpu.Replicated(WARP // threads)]
    return plgpu.Layout.TILED(
        plgpu.Tiling(((threads * neighbours,), (neighbours,))),
        warp_dims=(plgpu.Replicated(WARPGROUP // WARP),),
        lane_dims=(*copies, -2),
        vector_dim=-1,
    )


@_plgpu.inline_mgpu(return_type=_plgpu.ShapeDtypeStruct((), jnp.int32, layout=None))
def _warp_of_block(_: Any) -> Any:
    return mgpu.FragmentedArray.splat(mgpu.warp_idx(), (), is_signed=True)


@_plgpu.inline_mgpu()
def _warp_barrier(_: Any) -> None:
    mgpu.utils.warp_barrier()


def _store(_: Any, ref: Any, values: Any) -> None:
    values.store_untiled(ref, optimized=False)
