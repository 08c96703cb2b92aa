"""The code that an H100 would execute, executed: cases that break kernels, in two
orders, against the textbook."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import pooled_lookup
from embark_kernels.check import largest_error

from experiments.gpu import check_cases
from experiments.gpu.check_cases import Case, cases
from tests.kernels.emulator.launch import Emulator, emulated, why_not
from tests.kernels.emulator.mutants import mutants

pytestmark = [
    pytest.mark.gpu_compile,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
LEAST_COVERAGE = 0.95  # loops whose bodies always run have code for when they do not
MUTATED = (
    (None, "number_segments", "600 segments of up to 4, room for 1000"),
    (16, "sum_bags", "weighted"),
    (96, "sum_groups", ""),
    (24, "update_rows", "LazyAdam"),
    (16, "sum_and_update", "RowwiseAdagrad"),
    (128, "sum_and_update", "Adagrad"),
)
MUTANTS, LEAST_NOTICED = 10, 54


def compiled(case: Case) -> Any:
    """The program of a case, for CPU, with kernels for an H100."""
    return case.program.lower(*case.arguments).compile()


def problems(case: Case, program: Any, emulator: Emulator, seeds=(0, 1)) -> list[str]:
    """What is wrong with a case; each seed draws an order of execution."""
    results = []
    for emulator.seed in seeds:
        arguments = jax.tree.map(jnp.array, case.arguments)
        try:
            leaves = jax.tree.leaves(program(*arguments))
            results.append([np.asarray(leaf) for leaf in leaves])
        except jax.errors.JaxRuntimeError as error:
            return [str(error)]
    found = list(emulator.problems)
    for result in results:
        errors = [
            largest_error(actual, *expected)
            for actual, expected in zip(result, case.expected(), strict=True)
        ]
        if not max(errors) <= case.limit:
            found.append(f"differs from the textbook by {max(errors):.1e}")
    if len({b"".join(x.tobytes() for x in result) for result in results}) > 1:
        found.append("depends on the order of execution")
    return found


def test_an_update_is_right_in_the_emulator():
    """A small part of what follows, of a width that no quick test compiles before: what
    a process has compiled is not written for the emulator again."""
    case = next(case for case in cases(24) if case.op == "sum_and_update")
    with emulated() as emulator:
        assert problems(case, compiled(case), emulator, seeds=(1,)) == []
    assert min(x.mean() for x in emulator.executed.values()) > LEAST_COVERAGE


def test_a_table_of_more_than_two_billion_values_is_addressed():
    """Its pages are made when they are written to: there are two."""
    shape = rows, width = 2**31 // 1024 + 9, 1024
    table = np.zeros(shape, jnp.bfloat16)
    table[[0, -1]] = np.arange(2 * width).reshape(2, width) % 256
    shapes = [
        jax.ShapeDtypeStruct(shape, table.dtype),
        jax.ShapeDtypeStruct((2, 1), jnp.int32),
    ]
    with emulated() as emulator:
        jax.jit(lambda *x: pooled_lookup(*x, **check_cases.KERNELS)).lower(*shapes)
        ids, offsets = np.array([rows - 1, 0], np.int32), np.arange(3, dtype=np.int32)
        (sums,) = emulator.run(emulator.launches[0], [table, ids, offsets])
    np.testing.assert_array_equal(sums, table[ids].astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, 16, 24, 96, 128])
def test_all_cases_are_right_in_the_emulator(width):
    """Nothing is wrong, and what a kernel consists of is executed by one of them."""
    found, coverage = {}, {}
    for case in cases(width):
        with emulated() as emulator:
            about = f"{case.op} {case.dtype} {case.about}"
            found[about] = problems(case, compiled(case), emulator)
        for kernel, executed in emulator.executed.items():
            # Optimizers have kernels of their own, other operations share theirs.
            optimizer = case.about.split(",")[0] if "update" in case.op else ""
            name = kernel.name, case.dtype, optimizer
            if width is None or not name[0].startswith("number_segments"):
                coverage[name] = max(executed.mean(), coverage.get(name, 0.0))
    assert {about: problems for about, problems in found.items() if problems} == {}
    assert {x: y for x, y in coverage.items() if y < LEAST_COVERAGE} == {}


@pytest.mark.slow
def test_mutants_are_noticed():
    """Single changed instructions of executed code."""
    noticed = []
    for width, op, about in MUTATED:
        case = next(c for c in cases(width) if (c.op, c.about) == (op, about))
        with emulated() as emulator:
            program = compiled(case)
            assert problems(case, program, emulator, seeds=(0,)) == []
            right, executed = max(
                emulator.executed.items(), key=lambda item: len(item[0].code)
            )
            for mutant in mutants(right, executed, MUTANTS, seed=0):
                emulator.problems.clear()
                emulator.change = lambda kernel, right=right, mutant=mutant: (
                    mutant if kernel is right else kernel
                )
                noticed.append(bool(problems(case, program, emulator, seeds=(0,))))
    assert len(noticed) == MUTANTS * len(MUTATED)
    assert sum(noticed) >= LEAST_NOTICED
