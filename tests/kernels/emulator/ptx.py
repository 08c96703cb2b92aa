"""Reads PTX, the assembly of NVIDIA's GPUs
(https://docs.nvidia.com/cuda/parallel-thread-execution), as far as our kernels use it.
"""

from __future__ import annotations

import dataclasses
import re

COMMENT = re.compile(r"//.*")
ENTRY = re.compile(r"\.entry (\w+)\(([^)]*)\)[^{]*\{(.*?)\n\}", re.DOTALL)
PARAMETER = re.compile(r"\.param .*?(\w+),?$", re.MULTILINE)
LABEL = re.compile(r"(\$\w+):")
INSTRUCTION = re.compile(r"(?:@(!?%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
OPERAND = re.compile(r"\{[^}]*\}|\[[^]]*\]|[^,|\s]+")
REGISTER = re.compile(r"%(?:p|rs|r|rd)\d+")

Operands = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction, such as ``@%p1 bra $L__BB0_2``.

    Attributes:
      opcode: the operation with all its modifiers, such as ``ld.global.v2.b32``.
      operands: registers, numbers, labels, addresses in brackets, vectors in braces.
      guard: the predicate under which it is executed, or None.
    """

    opcode: str
    operands: Operands
    guard: str | None = None

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".strip()

    @property
    def jumps(self) -> bool:
        return self.opcode in ("bra", "bra.uni")

    @property
    def written(self) -> list[str]:
        """The registers that it writes."""
        if self.jumps or self.opcode.startswith(("st.", "bar.", "fence.", "ret")):
            return []
        count = 2 if self.opcode == "elect.sync" else 1
        return REGISTER.findall(" ".join(self.operands[:count]))

    @property
    def read(self) -> list[str]:
        """The registers that it reads."""
        registers = REGISTER.findall(" ".join((*self.operands, self.guard or "")))
        return registers[len(self.written) :]


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """The code of a kernel.

    Attributes:
      name: its name.
      parameters: the names of its parameters, which are addresses of arrays.
      code: its instructions.
      labels: the index in ``code`` that each label stands before.
    """

    name: str
    parameters: Operands
    code: tuple[Instruction, ...]
    labels: dict[str, int]

    def successors(self, index: int) -> list[int]:
        """The instructions that may follow one."""
        instruction = self.code[index]
        following = [self.labels[instruction.operands[0]]] if instruction.jumps else []
        if instruction.guard or not (instruction.jumps or instruction.opcode == "ret"):
            following.append(index + 1)
        return following

    def unset_reads(self) -> list[str]:
        """The reads of registers that are not set on every way to them."""
        names = {r for each in self.code for r in (*each.written, *each.read)}
        bit = {name: 1 << i for i, name in enumerate(sorted(names))}
        everything = (1 << len(bit)) - 1
        set_before = [0] + [everything] * (len(self.code) - 1)
        pending = list(range(len(self.code)))
        while pending:
            index = pending.pop()
            set_after = set_before[index]
            for name in self.code[index].written:
                set_after |= bit[name]
            for following in self.successors(index):
                if set_before[following] & ~set_after:
                    set_before[following] &= set_after
                    pending.append(following)
        return [
            f"{self.name}: {name} may be unset in `{instruction}`"
            for instruction, registers in zip(self.code, set_before, strict=True)
            for name in instruction.read
            if not registers & bit[name]
        ]


def parse(text: str) -> Kernel:
    """Reads the only kernel of a PTX module.

    Raises:
      ValueError: if there is not exactly one kernel, or a statement cannot be read.
    """
    entries = ENTRY.findall(COMMENT.sub("", text))
    if len(entries) != 1:
        raise ValueError(f"the module has {len(entries)} kernels, must have one")
    name, parameters, body = entries[0]
    code: list[Instruction] = []
    labels = {}
    for statement in body.split(";"):
        for label in LABEL.findall(statement):
            labels[label] = len(code)
        # Directives take a line each, and labels, too.
        lines = LABEL.sub("", statement).splitlines()
        words = " ".join(x for x in lines if not x.strip().startswith(".")).strip()
        if not words:
            continue
        match = INSTRUCTION.fullmatch(words)
        if match is None or (match[1] and match[2] != "bra"):
            raise ValueError(f"{name}: `{words}` is nothing that our kernels need")
        guard, opcode, operands = match.groups()
        code.append(Instruction(opcode, tuple(OPERAND.findall(operands)), guard))
    return Kernel(name, tuple(PARAMETER.findall(parameters)), tuple(code), labels)
