"""Runs a kernel as a GPU would: blocks of 128 threads, in warps of 32.

All threads that stand at one instruction execute it together, as one operation on NumPy
arrays. Of threads that diverged, those at the smallest instruction go first, so that
they meet again. The warps form teams, of which one at a time goes on to its next jump
or barrier. A seed draws the teams and their turns; with seed 0 there is one team.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.kernels.emulator.memory import (
    BLOCK,
    SHARED_BASE,
    WARP,
    Memory,
    MemoryAccessError,
)
from tests.kernels.emulator.operations import DTYPES, operation_of
from tests.kernels.emulator.ptx import Instruction, Kernel

TEAMS = 3
MAX_TURNS = 50_000
"""Far more than any kernel of the check takes."""
REGISTERS = {"%p": "pred", "%rs": "u16", "%r": "u32", "%rd": "u64"}
ENDS_TURN = ("bra", "bra.uni", "bar.sync", "ret")
FENCES = ("fence.mbarrier_init.release.cluster", "fence.proxy.async.shared::cta")

Threads = Any
"""A slice of all threads, or an array of their numbers."""
Waiting = dict[int, np.ndarray]
"""The numbers of the threads that stand before each instruction."""


class KernelError(Exception):
    """The kernel did what no kernel may do."""


class Machine:
    """One launch of a kernel.

    Args:
      kernel: the kernel.
      blocks: number of blocks.
      memory: what it works on.
      addresses: the value of each parameter.
      seed: draws the order of execution.
    """

    def __init__(
        self,
        kernel: Kernel,
        blocks: int,
        memory: Memory,
        addresses: list[int],
        seed: int = 0,
    ):
        self.executed = np.zeros(len(kernel.code), bool)
        """Whether each instruction was executed."""
        self._kernel, self._memory = kernel, memory
        self._parameters = dict(zip(kernel.parameters, addresses, strict=True))
        self._threads = np.arange(blocks * BLOCK)
        self._registers = {
            "%tid.x": (self._threads % BLOCK).astype(np.uint32),
            "%ctaid.x": (self._threads // BLOCK).astype(np.uint32),
            "__dynamic_shmem__0": np.full(blocks * BLOCK, SHARED_BASE, np.uint64),
        }
        self._barrier = np.full(blocks * BLOCK, -1)  # where each thread waits
        self._rng = np.random.default_rng(seed)
        warps = blocks * BLOCK // WARP
        self._team = self._rng.integers(TEAMS if seed else 1, size=warps).repeat(WARP)
        self._waiting: list[Waiting] = [{} for _ in range(TEAMS)]
        self._let_go(0, self._threads)
        self._steps = [self._step(i) for i in range(len(kernel.code))]
        ends = [i for i, x in enumerate(kernel.code) if x.opcode in ENDS_TURN]
        self._end_of_turn = np.repeat(ends, np.diff(ends, prepend=-1))

    def run(self) -> None:
        """Runs all threads to their end.

        Raises:
          KernelError: if an access or a barrier is wrong, or they do not end.
        """
        for _ in range(MAX_TURNS):
            teams = [waiting for waiting in self._waiting if waiting]
            if not teams:
                break
            with np.errstate(all="ignore"):
                self._turn(teams[self._rng.integers(len(teams))])
        else:
            raise KernelError(f"{self._kernel.name}: does not end")
        for line in self._barrier[self._barrier >= 0]:
            self._fail(line, "waits for threads that never come")

    def _turn(self, waiting: Waiting) -> None:
        """Lets the threads of a team that stand before the smallest instruction go on,
        to the next jump or barrier, or to where others of them wait."""
        first = line = min(waiting)
        threads = waiting.pop(first)
        last = int(self._end_of_turn[first])
        meeting = min(waiting, default=last + 1)
        is_slice = threads[-1] - threads[0] + 1 == len(threads)  # which copies nothing
        selected = slice(threads[0], threads[-1] + 1) if is_slice else threads
        self.executed[first : min(last + 1, meeting)] = True
        try:
            for line in range(first, min(last, meeting)):
                self._steps[line](selected)
        except MemoryAccessError as error:
            self._fail(line, str(error))
        if meeting <= last:
            self._let_go(meeting, threads)
            return
        instruction = self._kernel.code[last]
        if instruction.jumps:
            taken = np.ones(len(threads), bool)
            if guard := instruction.guard:
                taken = self._registers[guard.lstrip("!")][threads] ^ (guard[0] == "!")
            target = self._kernel.labels[instruction.operands[0]]
            self._let_go(target, threads[taken])
            self._let_go(last + 1, threads[~taken])
        elif instruction.opcode == "bar.sync":
            self._wait(last, threads)

    def _let_go(self, line: int, threads: np.ndarray) -> None:
        """Lets threads stand before an instruction."""
        for team in np.unique(self._team[threads]):
            waiting = self._waiting[team]
            others = waiting.get(line, threads[:0])
            members = threads[self._team[threads] == team]
            waiting[line] = np.sort(np.concatenate([others, members]))

    def _wait(self, line: int, threads: np.ndarray) -> None:
        """Lets threads wait at a barrier, and those of complete blocks go on."""
        if self._kernel.code[line].operands[1:] not in ((), (str(BLOCK),)):
            self._fail(line, f"is of other than {BLOCK} threads")
        self._barrier[threads] = line
        block = np.unique(threads // BLOCK)
        block = block[(self._barrier.reshape(-1, BLOCK)[block] >= 0).all(axis=1)]
        members = (block[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)
        self._memory.block_barriers[members] += 1
        for barrier in np.unique(self._barrier[members]):
            self._let_go(barrier + 1, members[self._barrier[members] == barrier])
        self._barrier[members] = -1

    def _step(self, line: int) -> Callable[[Threads], None]:
        """The function that executes an instruction before the end of a turn."""
        instruction = self._kernel.code[line]
        opcode, operands = instruction.opcode, instruction.operands
        kind, *modifiers = opcode.split(".")
        if opcode in (*ENDS_TURN, *FENCES):
            return lambda threads: None
        if opcode == "ld.param.b64":
            write = self._write(operands[0], "u64")
            address = self._parameters[operands[1].strip("[]")]
            return lambda threads: write(threads, address)
        if kind in ("ld", "st"):
            return self._access_step(line, kind, "shared" in modifiers, modifiers[-1])
        if kind in ("elect", "shfl") or opcode == "bar.warp.sync":
            return self._warp_step(line, instruction)
        if opcode == "mov.b32" and operands[0].startswith("{"):
            low, high = (self._write(x, "b16") for x in _names(operands[0]))
            read = self._read(operands[1], "b32")

            def unpack(threads):
                low(threads, read(threads) & np.uint32(0xFFFF))
                high(threads, read(threads) >> np.uint32(16))

            return unpack
        function, result, types = operation_of(opcode)
        write = self._write(operands[0], result)
        reads = [self._read(x, y) for x, y in zip(operands[1:], types, strict=True)]
        return lambda threads: write(threads, function(*(x(threads) for x in reads)))

    def _access_step(self, line: int, kind: str, is_shared: bool, dtype: str):
        """A load or a store."""
        names, address = self._kernel.code[line].operands[:: 1 if kind == "ld" else -1]
        base, _, offset = address.strip("[]").partition("+")
        read_base, by = self._read(base, "s64"), np.int64(offset or 0)

        def addresses(threads):
            return read_base(threads) + by, self._threads[threads]

        if kind == "ld":
            writes = [self._write(name, dtype) for name in _names(names)]

            def load(threads):
                address, numbers = addresses(threads)
                what = address, DTYPES[dtype], len(writes), numbers, line
                for write, values in zip(
                    writes, self._memory.load(is_shared, *what), strict=True
                ):
                    write(threads, values)

            return load
        reads = [self._read(name, dtype) for name in _names(names)]

        def store(threads):
            address, numbers = addresses(threads)
            values = [read(threads) for read in reads]
            self._memory.store(is_shared, address, values, numbers, line)

        return store

    def _warp_step(self, line: int, instruction: Instruction):
        """An instruction that all threads of a warp execute together."""
        operands = instruction.operands

        def numbers_of(threads):
            numbers = self._threads[threads]
            firsts, lasts = numbers[::WARP], numbers[WARP - 1 :: WARP]
            if numbers.size % WARP or (lasts - firsts != WARP - 1).any():
                self._fail(line, "not all threads of a warp are here")
            return numbers

        def pass_barrier(threads):
            self._memory.warp_barriers[numbers_of(threads)] += 1

        def elect(threads):
            is_leader = numbers_of(threads) % WARP == 0
            self._write(operands[0], "u32")(threads, 0)
            self._write(operands[1], "pred")(threads, is_leader)

        def shuffle(threads):
            source = numbers_of(threads)
            lane = self._read(operands[2], "u32")(threads)
            across = instruction.opcode == "shfl.sync.bfly.b32"
            source = source ^ lane if across else source - source % WARP + lane
            values = self._read(operands[1], "b32")(source)
            self._write(operands[0], "b32")(threads, values)

        if operands[-1] != "-1" or (len(operands) == 5 and operands[3] != "31"):
            self._fail(line, "is of other than whole warps")
        steps = {"bar": pass_barrier, "elect": elect, "shfl": shuffle}
        return steps[instruction.opcode.split(".")[0]]

    def _register(self, name: str) -> np.ndarray:
        if name not in self._registers:
            dtype = DTYPES[REGISTERS[name.rstrip("0123456789")]]
            self._registers[name] = np.zeros(len(self._threads), dtype)
        return self._registers[name]

    def _read(self, operand: str, kind: str) -> Callable[[Threads], Any]:
        """The function that reads an operand of a type; of a register that is wider,
        its lower bits."""
        dtype = DTYPES[kind]
        if operand[0] not in "%_":
            constant = _constant(operand, dtype)
            return lambda threads: constant
        values = self._register(operand)
        if values.itemsize == dtype.itemsize:
            values = values.view(dtype)
            return lambda threads: values[threads]
        lower = f"u{dtype.itemsize}"
        return lambda threads: values[threads].astype(lower).view(dtype)

    def _write(self, register: str, kind: str) -> Callable[[Threads, Any], None]:
        """The function that writes a register. If it is wider than the type, it is
        filled with zeros or, if the type is signed, with copies of the sign."""
        values, dtype = self._register(register), DTYPES[kind]
        if values.itemsize == dtype.itemsize:
            values = values.view(dtype)
        elif dtype.kind == "i":
            values = values.view(f"i{values.itemsize}")

        def write(threads, written):
            values[threads] = written

        return write

    def _fail(self, line: int, problem: str):
        instruction = self._kernel.code[line]
        raise KernelError(f"{self._kernel.name}: `{instruction}`: {problem}")


def _constant(text: str, dtype: np.dtype) -> Any:
    number = int(text[2:], 16) if text[:2] == "0f" else int(text, 0)
    if dtype.kind == "b":
        return np.bool_(number)
    bits = np.array(number % (1 << 8 * dtype.itemsize), f"u{dtype.itemsize}")
    return bits.view(dtype)[()]


def _names(vector: str) -> list[str]:
    """The elements of ``{%r1, %r2}``, or what is no vector alone."""
    return [name.strip() for name in vector.strip("{}").split(",")]
