"""What the collectives of a compiled program move."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

KINDS = "all-to-all|all-reduce|all-gather|reduce-scatter|collective-permute"
INSTRUCTION = re.compile(rf" = (.*?) ({KINDS})(-start)?\(")
ARRAY = re.compile(r"([a-z]+(\d*)\w*)\[([\d,]*)\]")
"""Type and shape of an array: ``bf16[4,8]``, with the number of bits of an element."""
NAME = re.compile(r'op_name="([^"]*)"')


class Collective(NamedTuple):
    """A collective of a program.

    Attributes:
      kind: such as "all-to-all".
      scopes: names that JAX has for its place in the program, outermost first.
      buffer_bytes: bytes of its result on a device.
    """

    kind: str
    scopes: tuple[str, ...]
    buffer_bytes: int


def collectives(hlo: str) -> Iterator[Collective]:
    """Yields the collectives of a program, ``jax.stages.Compiled.as_text()``."""
    for line in hlo.splitlines():
        if (found := INSTRUCTION.search(line)) is None:
            continue
        result, kind, is_asynchronous = found.groups()
        arrays = ARRAY.findall(result)
        if is_asynchronous and kind != "all-reduce":  # its operands come first
            arrays = arrays[len(arrays) // 2 :]
        sizes = [
            max(1, int(bits or 8) // 8) * math.prod(map(int, re.findall(r"\d+", shape)))
            for _, bits, shape in arrays
        ]
        name = NAME.search(line)
        scopes = tuple(name[1].split("/")[1:-1]) if name else ()
        yield Collective(kind, scopes, sum(sizes))
