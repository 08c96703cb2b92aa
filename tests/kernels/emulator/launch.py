"""Sends the kernels of a jitted function on CPU to the emulator, compiled for an H100
that is not there.

This reaches into JAX, and reads what Mosaic writes about its passes: see ``why_not``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from embark_jax.plans import fleet
from embark_jax.train.absent import absent_mesh
from tests.kernels.emulator.machine import Machine
from tests.kernels.emulator.memory import Memory
from tests.kernels.emulator.ptx import Kernel, parse

JAX_VERSIONS = ("0.10.2",)
"""Versions whose kernels the emulator knows."""
LAUNCH = re.compile(
    r"gpu\.launch_func .* blocks in \((%\w+), .* dynamic_shared_memory_size (%\w+) "
    r"args\((.*)\)"
)
CONSTANT = re.compile(r"(%\w+) = llvm\.mlir\.constant\((\d+) :")
FIRST_BUFFER = re.compile(r"(%\w+) = llvm\.load %arg\d+ :")
BUFFER = re.compile(
    r"(%\w+) = llvm\.getelementptr %arg\d+\[(\d+)\].*\n\s*(%\w+) = llvm\.load \1 :"
)


def why_not() -> str:
    """Returns why kernels cannot be emulated here; "" if they can."""
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        return "needs the CUDA plugin: make test-gpu-compile"
    if jax.__version__ not in JAX_VERSIONS:
        return f"knows jax {', '.join(JAX_VERSIONS)}, not {jax.__version__}"
    return ""


@dataclasses.dataclass(frozen=True)
class Launch:
    """A compiled kernel and how it is launched.

    Attributes:
      kernel: its code.
      blocks: number of blocks.
      shared_bytes: shared memory of each of them.
      results: shapes and data types of the results.
      replaced: the operands that results replace, by result.
      parameters: what each parameter is, counted through operands and results.
    """

    kernel: Kernel
    blocks: int
    shared_bytes: int
    results: list[jax.ShapeDtypeStruct]
    replaced: dict[int, int]
    parameters: list[int]


_launches: dict[str, Launch] = {}
"""By the text of their programs: Mosaic compiles each once a process."""


@dataclasses.dataclass
class Emulator:
    """Runs kernels as they are launched, and keeps what is seen.

    Attributes:
      seed: draws the order of execution of the next launches.
      change: changes the code of the next launches.
      launches: the launches of all programs that were compiled.
      problems: races and registers that may be unset.
      executed: for each kernel, whether each instruction was executed.
    """

    seed: int = 0
    change: Callable[[Kernel], Kernel] = lambda kernel: kernel
    launches: list[Launch] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    executed: dict[Kernel, np.ndarray] = dataclasses.field(default_factory=dict)

    def run(self, launch: Launch, operands: list[np.ndarray]) -> list[np.ndarray]:
        """Runs a kernel, and returns its results.

        Raises:
          KernelError: see ``machine``.
        """
        kernel = self.change(launch.kernel)
        self.problems += kernel.unset_reads()
        memory = Memory(launch.blocks, launch.shared_bytes)
        replaced = launch.replaced.values()
        addresses = [
            memory.add(f"operand {i}", operand, True if i in replaced else None)
            for i, operand in enumerate(operands)
        ]
        for i, result in enumerate(launch.results):
            if i in launch.replaced:
                addresses.append(addresses[launch.replaced[i]])
            else:
                empty = np.zeros(result.shape, result.dtype)
                addresses.append(memory.add(f"result {i}", empty, False))
        parameters = [addresses[i] for i in launch.parameters]
        machine = Machine(kernel, launch.blocks, memory, parameters, self.seed)
        self.executed.setdefault(kernel, np.zeros(len(kernel.code), bool))
        try:
            machine.run()
        finally:
            self.executed[kernel] |= machine.executed
        for where, *lines in memory.races():
            store, other = (kernel.code[line] for line in lines)
            race = f"race in {where}: `{store}`, `{other}`"
            self.problems.append(f"{kernel.name}: {race}")
        return [
            memory.values(address, result.shape, result.dtype)
            for address, result in zip(
                addresses[len(operands) :], launch.results, strict=True
            )
        ]


@contextlib.contextmanager
def emulated() -> Iterator[Emulator]:
    """Sends the kernels of functions that are compiled inside to an emulator."""
    from jax._src.interpreters import mlir
    from jax._src.pallas import mpmd

    emulator = Emulator()

    def lower(context, *operands, **params):
        if params["interpret"]:
            return mpmd._mpmd_map_lowering(context, *operands, **params)
        launch = _compiled(context.avals_in, context.avals_out, params)
        emulator.launches.append(launch)

        def run(*arrays):
            return emulator.run(launch, [np.array(array) for array in arrays])

        def call(*arrays):
            return jax.pure_callback(run, launch.results, *arrays)

        return mlir.lower_fun(call, multiple_results=True)(context, *operands)

    mlir.register_lowering(mpmd.mpmd_map_p, lower, platform="cpu")
    try:
        yield emulator
    finally:
        del mlir._platform_specific_lowerings["cpu"][mpmd.mpmd_map_p]


def _compiled(operands: Any, results: Any, params: dict[str, Any]) -> Launch:
    """Compiles a kernel for an H100."""
    from jax._src import compilation_cache
    from jax._src.pallas import mpmd

    device = absent_mesh(fleet.dgx_h100(1, 1)).devices.item()
    on_h100 = SingleDeviceSharding(device)
    shapes = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on_h100) for x in operands
    ]
    program = jax.jit(lambda *arrays: mpmd.mpmd_map_p.bind(*arrays, **params))
    lowered = program.lower(*shapes)
    text = lowered.as_text()
    if text not in _launches:
        with tempfile.TemporaryDirectory() as folder:
            with (
                mock.patch.dict("os.environ", MOSAIC_GPU_DUMP_TO=folder),
                # What a cache of programs has is not compiled, and writes nothing.
                mock.patch.object(
                    compilation_cache, "is_cache_used", return_value=False
                ),
            ):
                lowered.compile()
            (code,) = Path(folder).glob("*.ptx")
            (passes,) = Path(folder).glob("*.mlir-passes.log")
            _launches[text] = Launch(
                parse(code.read_text()),
                results=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
                replaced={out: x for x, out in params["input_output_aliases"].items()},
                **_launch_options(passes.read_text()),
            )
    return _launches[text]


def _launch_options(passes: str) -> dict[str, Any]:
    """Reads how the host launches the kernel from the module before each pass, of which
    the last has the simplest."""
    host = passes[passes.rindex("\nmodule @", 0, passes.rindex("gpu.launch_func")) :]
    launch = LAUNCH.search(host)
    assert launch is not None
    blocks, shared_bytes, arguments = launch.groups()
    constants = dict(CONSTANT.findall(host))
    buffers = {name: int(number) for _, number, name in BUFFER.findall(host)}
    buffers |= dict.fromkeys(FIRST_BUFFER.findall(host)[:1], 0)
    names = re.findall(r"(%\w+) : !llvm\.ptr", arguments)
    return {
        "blocks": int(constants[blocks]),
        "shared_bytes": int(constants[shared_bytes]),
        "parameters": [buffers[name] for name in names],
    }
