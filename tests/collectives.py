"""Reads the collectives of a compiled program: who takes part in them, and what the
schedule puts between their start and their end."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter

import numpy as np

from experiments.step_bytes.hlo import Instruction, Program

KINDS = {
    "all-to-all",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
}
COMPUTES = {"fusion", "custom-call", "dot", "convolution", "sort", "while", "call"}
LISTED = re.compile(r"replica_groups=\{(\{.*?\})\}")
IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
MESH = re.compile(
    r"replica_groups=mesh\[([^\]]+)\]"
    r"(?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))?\s*\{([^}]*)\}"
)
AXIS = re.compile(r"'(\w+)'=(\d+)")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the program.

    Attributes:
      kind: such as ``all-to-all``.
      operand_bytes: of one device, of each array: what it sends, of an all-gather what
        it receives.
      group: devices that take part together, the first of the groups.
      types: types of the elements that travel.
      between: the names that JAX gave the instructions that compute and which the
        schedule puts between its start and its end; none if it is not asynchronous.
    """

    kind: str
    operand_bytes: tuple[int, ...]
    group: tuple[int, ...]
    types: frozenset[str]
    between: tuple[str, ...] = ()

    @property
    def buffer_bytes(self) -> int:
        return sum(self.operand_bytes)

    def node_bytes(self, gpus_per_node: int) -> tuple[float, float]:
        """Bytes that a device sends inside its node, and to other nodes.

        Of an all-to-all to each its part. Of the others in rings that pass every device
        once: the links between nodes are shared by the devices of a node.
        """
        nodes = len({device // gpus_per_node for device in self.group})
        devices = len(self.group)
        if self.kind.endswith("all-to-all"):
            inside = devices // nodes - 1
            part = self.buffer_bytes / devices
            return part * inside, part * (devices - inside - 1)
        rounds = 2 if self.kind == "all-reduce" else 1
        moved = rounds * self.buffer_bytes * (devices - 1) / devices
        across = rounds * self.buffer_bytes * (nodes - 1) / nodes * nodes / devices
        return (moved, across) if devices > nodes else (0.0, moved)


def collectives(hlo: str) -> list[Collective]:
    """Those of a scheduled program, in its order."""
    found: list[Collective] = []
    for lines in Program(hlo).computations.values():
        waiting: dict[str, int] = {}  # start -> place in `found`
        for each in lines.values():
            if each.opcode.removesuffix("-start") in KINDS:
                if each.opcode.endswith("-start"):
                    waiting[each.name] = len(found)
                found.append(_collective(each))
            elif each.opcode.endswith("-done"):
                waiting.pop(each.operands[0], None)
            elif each.opcode in COMPUTES:
                for place in waiting.values():
                    between = (*found[place].between, each.purpose)
                    found[place] = dataclasses.replace(found[place], between=between)
    return found


def counted(hlo: str) -> Counter[tuple[str, int]]:
    """How many of each ``(kind, bytes)`` there are in a compiled program: an all-to-all
    of several arrays counts once, any other once an array."""
    found: Counter[tuple[str, int]] = Counter()
    for each in collectives(hlo):
        whole = each.kind == "all-to-all"
        kind = each.kind.replace("-", "_")
        found.update(
            (kind, size)
            for size in ([each.buffer_bytes] if whole else each.operand_bytes)
        )
    return found


def _collective(each: Instruction) -> Collective:
    kind = each.opcode.removesuffix("-start")
    operands = tuple(map(int.__mul__, each.sizes, each.item_bytes))
    if kind not in (each.opcode, "all-reduce"):  # operands, then results
        operands = operands[len(operands) // 2 :]
    return Collective(kind, operands, _group(each.rest), frozenset(each.types))


def _group(rest: str) -> tuple[int, ...]:
    """The first of its replica groups."""
    if match := IOTA.search(rest):
        groups, dims, order = (
            [int(n) for n in part.split(",")] if part else None
            for part in match.groups()
        )
        devices = np.arange(math.prod(dims)).reshape(dims)
        if order is not None:
            devices = devices.transpose(order)
        return tuple(map(int, devices.reshape(groups)[0]))
    if match := LISTED.search(rest):
        first = match[1].split("}")[0].strip("{")
        return tuple(int(n) for n in first.split(","))
    if match := MESH.search(rest):
        axes = {name: int(size) for name, size in AXIS.findall(match[1])}
        together = re.findall(r"'(\w+)'", match[4])
        devices = np.arange(math.prod(axes.values()))
        if match[2]:
            dims, order = ([int(n) for n in match[i].split(",")] for i in (2, 3))
            devices = devices.reshape(dims).transpose(order)
        devices = devices.reshape(list(axes.values()))
        first = tuple(slice(None) if name in together else 0 for name in axes)
        return tuple(map(int, devices[first].reshape(-1)))
    return ()
