"""Counts what each instruction of a compiled GPU program reads and writes in device
memory.

The text is that of a scheduled XLA module. Every instruction of the entry and of its
loops is a kernel, a copy, a collective, or moves nothing. A kernel reads what it needs
of its operands once and writes its results once, with these rules:

- A slice or gather reads only the rows that it takes. A scatter writes only the rows
  that it changes, and reads them first if it adds to them. A row at any place costs at
  least a sector; where the array fits in the cache, or its rows come in order, each of
  its bytes moves at most once.
- A sort moves its data as often as a radix sort with digits of eight bits does
  (https://arxiv.org/abs/2206.01784), whatever sort the compiler emits without a GPU.
- A loop counts as often as it is known to run, else as often as its name declares. A
  conditional counts the branch that moves the most.
- A Pallas kernel moves what its name declares: see ``embark_kernels._mosaic.moves``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

from embark_kernels.attention import declared_turns

CACHE_BYTES = 2**25
"""Half of an H100's L2 cache: data that streams through occupies the other half."""

SECTOR_BYTES = 32
"""The least that a GPU's memory moves at once
(https://docs.nvidia.com/nsight-compute/ProfilingGuide/)."""

COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) "
    r"(?P<opcode>[\w\-]+)\((?P<operands>[^)]*)\)(?P<rest>.*)$"
)
OPERAND = re.compile(r"%([\w.\-]+)")
SHAPE = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")
CALLED = re.compile(
    r"\b(?:calls|to_apply|body|branch_computations|true_computation|false_computation)="
    r"(?:\{([^}]*)\}|%([\w.\-]+))"
)
TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
TARGET = re.compile(r'custom_call_target="([^"]*)"')
NAMED = re.compile(r'op_name="([^"]*)"')
DECLARED = re.compile(r"reads (\d+) writes (\d+) bytes")
CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
COLLECTIVE = re.compile(r"(all-to-all|all-reduce|all-gather|reduce-scatter)(-start)?$")
MOVE_NOTHING = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "opt-barrier",
    "partition-id",
    "replica-id",
}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation.

    Attributes:
      name, opcode: as the text has them.
      dims: dimensions of each array that it makes.
      types: such as ``f32``, of the elements of each of these arrays.
      item_bytes: bytes of an element of each of these arrays.
      operands: names of other instructions of the computation.
      rest: the text of its attributes.
    """

    name: str
    opcode: str
    dims: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    item_bytes: tuple[int, ...]
    operands: tuple[str, ...]
    rest: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of each array."""
        return tuple(math.prod(each) for each in self.dims)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def bytes(self) -> int:
        return sum(map(int.__mul__, self.sizes, self.item_bytes))

    @property
    def purpose(self) -> str:
        """The name that JAX gave it; empty if XLA made it."""
        named = NAMED.search(self.rest)
        return named[1] if named else ""

    @property
    def called(self) -> list[str]:
        """Names of the computations that it runs."""
        return [
            name.strip().lstrip("%")
            for listed, one in CALLED.findall(self.rest)
            for name in (listed or one).split(",")
        ]


@dataclasses.dataclass(frozen=True)
class Moved:
    """What an instruction moves, over all iterations of its loop.

    Attributes:
      name, opcode: those of the instruction.
      purpose: the name that JAX gave it; empty if XLA made it.
      read_bytes, written_bytes: bytes of device memory.
      turns: number of these iterations.
      flops: operations of its matrix products.
      instruction: what the text says of it.
    """

    name: str
    opcode: str
    purpose: str
    read_bytes: float
    written_bytes: float
    turns: float
    flops: float
    instruction: Instruction

    @property
    def bytes(self) -> float:
        return self.read_bytes + self.written_bytes


class Program:
    """A scheduled module.

    Args:
      text: the module's text, as ``jax.stages.Compiled.as_text`` returns it.
      turns: how often loops run on average that end by data; None is what they declare.

    Attributes:
      computations: the instructions of each computation by their names, in order.
    """

    def __init__(self, text: str, turns: float | None = None):
        self._turns = turns
        self.computations: dict[str, dict[str, Instruction]] = {}
        self._roots: dict[str, Instruction] = {}
        entry = current = ""
        for line in text.splitlines():
            if found := COMPUTATION.match(line):
                current = found["name"]
                self.computations[current] = {}
                entry = current if found["entry"] else entry
            elif current and (found := INSTRUCTION.match(line)):
                each = _instruction(found)
                self.computations[current][each.name] = each
                if found["root"]:
                    self._roots[current] = each
        self._entry = entry

    def moved(self) -> list[Moved]:
        """What all instructions of the program move, in the order of the schedule. A
        collective that runs beside others moves all where it starts, and nothing where
        it is done."""
        return list(self._moved(self._entry, 1))

    def _flops(self, each: Instruction) -> float:
        """Operations of the products in a kernel, for one iteration."""
        is_fusion = each.opcode == "fusion"
        lines = self.computations[each.called[0]] if is_fusion else {}
        return sum(
            2.0 * line.size * _contracted(lines[line.operands[0]], line)
            for line in lines.values()
            if line.opcode == "dot"
        )

    def _moved(self, computation: str, turns: float) -> Iterator[Moved]:
        lines = self.computations[computation]
        for each in lines.values():
            if each.opcode in MOVE_NOTHING:
                continue
            if each.opcode == "while":
                by_data = self._turns or declared_turns(each.purpose)
                known = TURNS.search(each.rest)
                of_loop = int(known[1]) if known else by_data
                yield from self._moved(each.called[0], turns * of_loop)
            elif each.opcode == "conditional":
                branches = [list(self._moved(name, turns)) for name in each.called]
                yield from max(branches, key=lambda all_: sum(m.bytes for m in all_))
            elif each.opcode in ("call", "async-start"):
                for name in each.called:
                    yield from self._moved(name, turns)
            else:
                operands = [lines[name] for name in each.operands]
                read, written = 0.0, 0.0
                if not each.opcode.endswith("-done"):
                    read, written = self._bytes_of(each, operands)
                yield Moved(
                    each.name,
                    each.opcode,
                    each.purpose,
                    turns * read,
                    turns * written,
                    turns,
                    turns * self._flops(each),
                    each,
                )

    def _bytes_of(
        self, each: Instruction, operands: list[Instruction]
    ) -> tuple[float, float]:
        """``(read, written)`` bytes, for one iteration."""
        operand_bytes = sum(operand.bytes for operand in operands)
        if declared := DECLARED.search(each.rest):
            return float(declared[1]), float(declared[2])
        if each.opcode == "fusion":
            lines = self.computations[each.called[0]]
            inputs = {n for n, line in lines.items() if line.opcode == "parameter"}
            root = self._roots[each.called[0]]
            if root.opcode == "sort":
                return _sort_bytes([lines[name] for name in root.operands])
            return self._kernel_bytes(lines, inputs, root)
        if found := COLLECTIVE.match(each.opcode):
            if found[1] in ("all-gather", "reduce-scatter"):
                started = operand_bytes if found[2] else 0
                return operand_bytes, each.bytes - started
            return operand_bytes, operand_bytes
        target = TARGET.search(each.rest)
        if each.opcode == "sort" or (target and "RadixSort" in target[1]):
            return _sort_bytes(operands)
        if target and target[1].startswith("__cublas"):
            results = (n * b for n, b in zip(each.sizes, each.item_bytes, strict=True))
            return operand_bytes, next(results)  # the other results are its workspace
        lines = {operand.name: operand for operand in operands}
        return self._kernel_bytes({**lines, each.name: each}, set(lines), each)

    def _kernel_bytes(
        self, lines: dict[str, Instruction], inputs: set[str], root: Instruction
    ) -> tuple[float, float]:
        """``(read, written)`` bytes of one kernel.

        Args:
          lines: the instructions of its computation; operands come before their users.
          inputs: names of the instructions whose results lie in memory.
          root: the instruction that makes its result.
        """
        wanted = dict.fromkeys(lines, 0.0)  # elements that are computed or read
        rows_bytes = dict.fromkeys(lines, 0.0)  # read by gathers of rows
        results = (
            [lines[o] for o in root.operands] if root.opcode == "tuple" else [root]
        )
        written = 0.0
        for result in results:
            wanted[result.name] = result.size
            made = _behind_bitcasts(lines, result)
            if made.opcode == "scatter":
                indices, updates = (lines[name] for name in made.operands[1:3])
                written += _rows_bytes(made, made, indices, updates)
            elif made.opcode == "dynamic-update-slice":
                written += lines[made.operands[1]].bytes
            else:
                written += made.bytes
        for user in reversed(lines.values()):
            elements = min(wanted[user.name], user.size)
            share = elements / user.size if elements else 0.0
            for place, name in enumerate(user.operands):
                if name not in lines or name == user.name:
                    continue
                operand = lines[name]
                match user.opcode, place:
                    case "gather", 0 if name in inputs:
                        indices = lines[user.operands[1]]
                        rows_bytes[name] += share * _rows_bytes(
                            user, operand, indices, user
                        )
                    case "gather", 0:
                        wanted[name] += elements
                    case "scatter", 0:
                        indices, updates = (lines[each] for each in user.operands[1:3])
                        combined = self._roots[user.called[0]]
                        if combined.opcode != "parameter":
                            rows_bytes[name] += _rows_bytes(
                                user, user, indices, updates
                            )
                    case "dynamic-update-slice", 0:
                        pass
                    case "slice" | "dynamic-slice", 0:
                        wanted[name] += elements
                    case "broadcast" | "pad" | "concatenate", _:
                        wanted[name] += min(operand.size, elements)
                    case _:
                        wanted[name] += share * operand.size
        read = 0.0
        for name in inputs:
            each = lines[name]
            whole_bytes = min(wanted[name] / max(each.size, 1), 1.0) * each.bytes
            read += max(whole_bytes, rows_bytes[name])
        return read, written


def _instruction(found: re.Match) -> Instruction:
    shapes, types, item_bytes = [], [], []
    for kind, bits, dims in SHAPE.findall(found["shape"]):
        shapes.append(tuple(int(n) for n in dims.split(",") if n))
        types.append(kind + bits)
        if (kind == "f" and bits == "8") or kind == "pred":
            bits = "8"
        item_bytes.append(int(bits or 0) // 8)
    return Instruction(
        found["name"],
        found["opcode"],
        tuple(shapes),
        tuple(types),
        tuple(item_bytes),
        tuple(OPERAND.findall(found["operands"])),
        found["rest"],
    )


def _contracted(left: Instruction, dot: Instruction) -> int:
    """Number of terms of each sum of a product."""
    found = CONTRACTED.search(dot.rest)
    places = found[1].split(",") if found and found[1] else []
    return math.prod(left.dims[0][int(place)] for place in places)


def _sort_bytes(operands: list[Instruction]) -> tuple[float, float]:
    """``(read, written)`` bytes of a sort by its first operand, the keys."""
    keys = operands[0]
    moved = keys.item_bytes[0] * sum(each.bytes for each in operands)
    return moved + keys.bytes, moved


def _behind_bitcasts(lines: dict[str, Instruction], each: Instruction) -> Instruction:
    while each.opcode == "bitcast":
        each = lines[each.operands[0]]
    return each


def _rows_bytes(
    user: Instruction, array: Instruction, index: Instruction, rows: Instruction
) -> float:
    """Bytes of the rows that a gather or scatter reads or writes in an array."""
    moved_bytes = float(rows.bytes)
    if array.bytes <= CACHE_BYTES or "indices_are_sorted=true" in user.rest:
        return min(moved_bytes, array.bytes)
    count = index.size // max(index.dims[0][-1:] or (1,))
    return max(moved_bytes, count * SECTOR_BYTES)
