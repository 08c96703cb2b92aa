"""Mutants of a kernel: the same code but for one instruction."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import numpy as np

from tests.kernels.emulator.ptx import REGISTER, Instruction, Kernel

OTHERS = {
    "add": "sub",
    "sub": "add",
    "mul": "add",
    "min": "max",
    "max": "min",
    "and": "or",
    "or": "and",
    "shl": "shr",
    "shr": "shl",
    "setp.lt": "setp.le",
    "setp.le": "setp.lt",
    "setp.gt": "setp.ge",
    "setp.ge": "setp.gt",
    "setp.eq": "setp.ne",
    "setp.ne": "setp.eq",
}
NUMBER = re.compile(r"(?<![%\w$.])-?\d+\b")


def mutants(
    kernel: Kernel, executed: np.ndarray, count: int, seed: int
) -> Iterator[Kernel]:
    """Changes executed instructions whose results are read: the operation, a number, a
    register, or the condition of a jump.

    Args:
      kernel: the right kernel.
      executed: whether each of its instructions was executed.
      count: number of mutants.
      seed: draws the instructions and their changes.
    """
    rng = np.random.default_rng(seed)
    registers = {name for each in kernel.code for name in each.read}
    for line in rng.permutation(np.flatnonzero(executed)):
        instruction = kernel.code[line]
        written = instruction.written
        if written and not registers & set(written):
            continue
        if changed := _changed(instruction, registers, rng):
            code = (*kernel.code[:line], changed, *kernel.code[line + 1 :])
            yield dataclasses.replace(kernel, code=code)
            count -= 1
        if not count:
            return


def _changed(
    instruction: Instruction, registers: set[str], rng: np.random.Generator
) -> Instruction | None:
    """The instruction with a change, or None if none is possible."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode.startswith(("bar.", "fence.", "elect.", "ret", "bra.uni", "ld.param")):
        return None
    if instruction.guard:
        guard = instruction.guard
        guard = guard[1:] if guard.startswith("!") else f"!{guard}"
        return dataclasses.replace(instruction, guard=guard)
    changes = []
    for name, other in OTHERS.items():
        if opcode.startswith(f"{name}.") and ".wide" not in opcode:
            swapped = opcode.replace(name, other, 1)
            swapped = re.sub(r"\.(lo|hi|rn)\b", "", swapped)
            changes.append(dataclasses.replace(instruction, opcode=swapped))
    for i, operand in enumerate(operands):
        if numbers := NUMBER.search(operand):
            # Addresses move by what they may be aligned to.
            by = 16 if operand.startswith("[") else 1
            text = operand.replace(numbers[0], str(int(numbers[0]) + by), 1)
            changes.append(_with_operand(instruction, i, text))
        for name in REGISTER.findall(operand):
            if name in instruction.read and (i or opcode.startswith("st.")):
                kind = name.rstrip("0123456789")
                like = [x for x in registers if x.rstrip("0123456789") == kind]
                other = sorted(set(like) - {name})[rng.integers(len(like) - 1)]
                text = re.sub(rf"{name}\b", other, operand)
                changes.append(_with_operand(instruction, i, text))
    return changes[rng.integers(len(changes))] if changes else None


def _with_operand(instruction: Instruction, index: int, text: str) -> Instruction:
    operands = list(instruction.operands)
    operands[index] = text
    return dataclasses.replace(instruction, operands=tuple(operands))
