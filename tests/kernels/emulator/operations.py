"""The arithmetic instructions of PTX, in NumPy.

Those that a GPU approximates are as wrong here as the manual allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    "pred": np.dtype(bool),
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    **{
        f"{letter}{bits}": np.dtype(f"{kind}{bits // 8}")
        for letter, kind in (("b", "u"), ("u", "u"), ("s", "i"))
        for bits in (8, 16, 32, 64)
    },
}
DIVISION_ERROR, RSQRT_ERROR = 2.0**-22, 2.0**-22.9


def fused_multiply_add(a: Any, b: Any, c: Any) -> Any:
    """Returns ``a * b + c``, rounded once, but for one of some 2**29 float32 sums,
    which the rounding to float64 before moves."""
    return (np.multiply(a, b, dtype=float) + c).astype(np.float32)


def divide_roughly(a: Any, b: Any) -> Any:
    return (np.divide(a, b, dtype=float) * (1 + DIVISION_ERROR)).astype(np.float32)


def rsqrt_roughly(a: Any) -> Any:
    return ((1 + RSQRT_ERROR) / np.sqrt(a, dtype=float)).astype(np.float32)


def shift(by: np.ufunc) -> Callable[[Any, Any], Any]:
    """Returns a shift that gives zeros, or copies of the sign, for as many bits as
    there are, and for more. NumPy's shifts know only fewer."""

    def shift(value: Any, amount: Any) -> Any:
        bits = 8 * value.itemsize
        shifted = by(value, np.minimum(amount, bits - 1).astype(value.dtype))
        keeps_sign = value.dtype.kind == "i" and by is np.right_shift
        return np.where((amount < bits) | keeps_sign, shifted, value.dtype.type(0))

    return shift


def extract_bits(value: Any, first: Any, count: Any) -> Any:
    """Returns ``count`` bits, fewer than 32, from ``first`` on."""
    return (value >> first) & ((np.uint32(1) << count) - np.uint32(1))


def pack_bfloat16(high: Any, low: Any) -> Any:
    """Returns two float32 numbers as bfloat16 in one register."""
    high, low = (np.asarray(x).astype(DTYPES["bf16"]).view("u2") for x in (high, low))
    return (high.astype("u4") << np.uint32(16)) | low


def is_other_number(a: Any, b: Any) -> Any:
    """Returns whether they differ; false, unlike in NumPy, if one is not a number."""
    return (a < b) | (a > b)


Operation = tuple[Callable[..., Any], str, tuple[str, ...]]
"""A function, and the types of its result and operands; "" is the one that ends the
opcode."""
OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(("add", "add.rn"), (np.add, "", ("", ""))),
    **dict.fromkeys(("mul", "mul.rn", "mul.lo"), (np.multiply, "", ("", ""))),
    "sub": (np.subtract, "", ("", "")),
    "div.full": (divide_roughly, "", ("", "")),
    "min": (np.fmin, "", ("", "")),
    "max": (np.fmax, "", ("", "")),
    "max.NaN": (np.maximum, "", ("", "")),
    "and": (np.bitwise_and, "", ("", "")),
    "or": (np.bitwise_or, "", ("", "")),
    "xor": (np.bitwise_xor, "", ("", "")),
    "setp.lt": (np.less, "pred", ("", "")),
    "setp.le": (np.less_equal, "pred", ("", "")),
    "setp.gt": (np.greater, "pred", ("", "")),
    "setp.ge": (np.greater_equal, "pred", ("", "")),
    "setp.eq": (np.equal, "pred", ("", "")),
    "setp.ne": (is_other_number, "pred", ("", "")),
    "mul.hi": (lambda a, b: np.multiply(a, b, dtype="i8") >> 32, "", ("", "")),
    "mad.lo": (lambda a, b, c: a * b + c, "", ("", "", "")),
    "fma.rn": (fused_multiply_add, "", ("", "", "")),
    "rsqrt.approx": (rsqrt_roughly, "", ("",)),
    "neg": (np.negative, "", ("",)),
    "not": (np.logical_not, "", ("",)),
    "shl": (shift(np.left_shift), "", ("", "u32")),
    "shr": (shift(np.right_shift), "", ("", "u32")),
    "bfe": (extract_bits, "", ("", "u32", "u32")),
    "selp": (lambda a, b, chosen: np.where(chosen, a, b), "", ("", "", "pred")),
    **dict.fromkeys(("mov", "cvta.to.global"), (lambda a: a, "", ("",))),
}


def operation_of(opcode: str) -> Operation:
    """Returns the operation of an arithmetic opcode, with all types.

    Raises:
      KeyError: if it is none that our kernels need.
    """
    if opcode == "cvt.rn.bf16x2.f32":
        return pack_bfloat16, "b32", ("f32", "f32")
    name, kind = opcode.rsplit(".", 1)
    if name.startswith("cvt."):  # cvt.rn.bf16.f32
        to = name.split(".")[-1]
        return (lambda a: np.asarray(a).astype(DTYPES[to])), to, (kind,)
    if name == "mul.wide":
        wide = f"{kind[0]}{2 * int(kind[1:])}"
        return (lambda a, b: np.multiply(a, b, dtype=DTYPES[wide])), wide, (kind, kind)
    function, result, operands = OPERATIONS[name]
    return function, result or kind, tuple(x or kind for x in operands)
