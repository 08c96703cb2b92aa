"""The values of a model that are in memory, as XLA keeps them.

Of what ``jax.vjp`` keeps, XLA makes again what elementwise operations give, in the
program that reads it. There are arrays of inputs, of results of all other operations
(products, sums, gathers), and of operands of products; and of what is smaller than all
that it is made of, such as a mask.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, Literal, Var

PRODUCTS = {"dot_general", "ragged_dot", "conv_general_dilated"}
ELEMENTWISE = {
    *("abs", "add", "add_any", "and", "broadcast_in_dim", "ceil", "clamp", "copy"),
    *("convert_element_type", "div", "eq", "erf", "erf_inv", "exp", "expand_dims"),
    *("expm1", "floor", "ge", "gt", "integer_pow", "iota", "is_finite", "le", "log"),
    *("log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pad"),
    *(
        "one_minus_square",
        "pow",
        "reshape",
        "rev",
        "rsqrt",
        "select_n",
        "sign",
        "slice",
        "sqrt",
        "square",
    ),
    *("squeeze", "stop_gradient", "sub", "tanh", "transpose", "xor"),
}
"""Operations that XLA fuses into those that read their results."""

VIEWS = {"broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose"}
"""Those of them that products read through."""


class _Operation(NamedTuple):
    """An operation of a flat program, whose values are numbered."""

    name: str
    inputs: list[int]
    outputs: list[int]


class _Program:
    """A program without calls.

    Attributes:
      operations: its operations, in order.
      sizes: bytes of its values, by number.
    """

    def __init__(self):
        self.operations: list[_Operation] = []
        self.sizes: list[int] = []

    def value(self, variable: Any) -> int:
        """Adds a value."""
        shaped = variable.aval
        self.sizes.append(math.prod(shaped.shape) * shaped.dtype.itemsize)
        return len(self.sizes) - 1

    def add(self, jaxpr: Jaxpr, numbers: dict[Var, int]) -> list[int | None]:
        """Adds the operations of a jaxpr, whose inputs have these numbers; those
        without one are there anyway. Returns the numbers of its results."""

        def numbered(variables: Iterable[Any]) -> list[int | None]:
            return [
                None if isinstance(v, Literal) else numbers.get(v) for v in variables
            ]

        for equation in jaxpr.eqns:
            inputs, params = numbered(equation.invars), equation.params
            called = params.get("jaxpr") or params.get("call_jaxpr")
            called = getattr(called, "jaxpr", called)
            if called is not None and len(called.invars) == len(inputs):
                pairs = zip(called.invars, inputs, strict=True)
                outputs = self.add(called, {v: n for v, n in pairs if n is not None})
                if equation.primitive.name == "scan":  # what its turns give together
                    own = [number for number in outputs if number is not None]
                    outputs = [self.value(variable) for variable in equation.outvars]
                    self.operations.append(_Operation("scan", own, outputs))  # pyright: ignore
            else:
                outputs = [self.value(variable) for variable in equation.outvars]
                own = [number for number in inputs if number is not None]
                name = equation.primitive.name
                self.operations.append(_Operation(name, own, outputs))  # pyright: ignore
            pairs = zip(equation.outvars, outputs, strict=True)
            numbers |= {v: n for v, n in pairs if n is not None}
        return numbered(jaxpr.outvars)

    def operands(self) -> set[int]:
        """Returns the values that products read."""
        found: set[int] = set()
        for name, of_operation, results in reversed(self.operations):
            if name in PRODUCTS or (name in VIEWS and found.intersection(results)):
                found.update(of_operation)
        return found


def _flat(
    function: Callable[..., Any], held: Any, inputs: tuple[Any, ...]
) -> tuple[_Program, set[int], set[int]]:
    """Returns the program of ``(held, *inputs) -> …``, and the numbers of its inputs,
    but for what is held, and of its results."""
    jaxpr = jax.make_jaxpr(function)(held, *inputs).jaxpr
    program, there = _Program(), len(jax.tree.leaves(held))
    of_inputs = {variable: program.value(variable) for variable in jaxpr.invars[there:]}
    results = program.add(jaxpr, dict(of_inputs))
    return program, set(of_inputs.values()), {n for n in results if n is not None}


def products(forward: Callable[..., Any], *inputs: Any) -> list[tuple[int, ...]]:
    """Returns the sizes of each product of a program: batch, left, right, inner. A loop
    multiplies the batch; of branches the one with most work counts.

    Args:
      forward: the program.
      inputs: its arguments, arrays or shapes.
    """

    def found(jaxpr: Jaxpr, times: int) -> Iterator[tuple[int, ...]]:
        for equation in jaxpr.eqns:
            name, params = equation.primitive.name, equation.params
            if name == "dot_general":
                (inner, _), (batch, _) = params["dimension_numbers"]
                left, right = (_shape(variable) for variable in equation.invars)
                k, b = (math.prod(left[i] for i in of) for of in (inner, batch))
                sizes = (math.prod(shape) // (k * b) for shape in (left, right))
                yield times * b, *sizes, k
            length = params.get("length", 1)
            called = [[*found(each, times * length)] for each in _called(params)]
            if name == "cond":
                called = [max(called, key=lambda each: sum(map(math.prod, each)))]
            yield from itertools.chain(*called)

    return [*found(jax.make_jaxpr(forward)(*inputs).jaxpr, 1)]


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def _called(params: Mapping[str, Any]) -> Iterator[Jaxpr]:
    """Yields the programs that an operation's parameters name."""
    for value in params.values():
        for each in value if isinstance(value, tuple) else (value,):
            jaxpr = getattr(each, "jaxpr", each)
            if isinstance(jaxpr, Jaxpr):
                yield jaxpr


def kept_bytes(backward: Callable[..., Any], held: Any, *inputs: Any) -> int:
    """Returns the bytes of the arrays that backward needs.

    Args:
      backward: ``(held, *inputs) -> jax.vjp(forward, …)[1]``.
      held: trees of arrays that are there anyway, such as parameters.
      inputs: the other arguments, arrays or shapes.
    """
    program, of_inputs, needed = _flat(backward, held, inputs)
    operands, sizes = program.operands(), program.sizes
    kept = needed & of_inputs
    # For each value the arrays that elementwise operations make it of.
    sources = {number: {number} for number in of_inputs}
    for name, of_operation, results in program.operations:
        fused = name in ELEMENTWISE
        made_of = set().union(*(sources[number] for number in of_operation))
        for number in results:
            again = fused and (number not in operands or name in VIEWS)
            sources[number] = made_of if again else {number}
            if number in needed:
                missing = sources[number] - kept
                if sum(sizes[n] for n in missing) > sizes[number]:
                    sources[number] = missing = {number}
                kept |= missing
    return sum(sizes[number] for number in kept)


def peak_bytes(gradients: Callable[..., Any], held: Any, *inputs: Any) -> int:
    """Returns the bytes of the arrays that are there at once at most, besides inputs,
    where operations run in the order in which they were traced. An elementwise result
    lies where an operand of its size was that nothing reads any more; one that is
    smaller than what it is made of, such as a mask, is kept in place of that.

    Args:
      gradients: ``(held, *inputs) -> jax.grad(…)``.
      held, inputs: as for ``kept_bytes``.
    """
    program, of_inputs, outputs = _flat(gradients, held, inputs)
    operands, sizes = program.operands(), program.sizes
    sources = {number: {number} for number in of_inputs}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    made_here: list[tuple[int, set[int]]] = []
    for time, (name, of_operation, results) in enumerate(program.operations):
        made_of = set().union(*(sources[number] for number in of_operation))
        last |= dict.fromkeys(made_of, time)
        for number in results:
            again = name in ELEMENTWISE and (number not in operands or name in VIEWS)
            larger = sum(sizes[n] for n in made_of) > sizes[number]
            if again and not larger:
                sources[number] = made_of
            else:
                sources[number] = {number}
                first[number] = last[number] = time
                if name in ELEMENTWISE:
                    made_here.append((number, made_of))
    for number in outputs:
        last |= dict.fromkeys(sources[number], len(program.operations))
    for number, made_of in made_here:
        time = first[number]
        for each in made_of & first.keys():
            if last[each] == time and sizes[each] == sizes[number]:
                last[each] = time - 1
                break
    changes = [0] * (len(program.operations) + 2)
    for number, time in first.items():
        changes[time] += sizes[number]
        changes[last[number] + 1] -= sizes[number]
    return max(itertools.accumulate(changes))
