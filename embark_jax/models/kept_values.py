"""The values of a model that are in memory, as XLA keeps them.

Of what a gradient reads, XLA makes again what elementwise operations give, in the
kernel that reads it. There are arrays of inputs, of results of all other operations
(products, sums, gathers), and of operands of products; and of what is smaller than all
that it is made of, such as a mask.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from embark_kernels.attention import declared_turns
from jax.extend.core import Jaxpr, Literal, Var

PRODUCTS = {"dot_general", "ragged_dot", "conv_general_dilated"}
FUSED = """
    abs add add_any and broadcast_in_dim ceil clamp concatenate convert_element_type
    copy div eq erf erf_inv exp expand_dims expm1 floor ge gt integer_pow iota
    is_finite le log log1p logistic lt max min mul ne neg not one_minus_square or pad
    pow reshape rev rsqrt select_n sign slice split sqrt square squeeze stop_gradient
    sub tanh transpose xor
"""
ELEMENTWISE = set(FUSED.split())
"""Operations that XLA fuses into those that read their results."""

VIEWS = {"broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose"}
"""Those of them that products read through."""
SUM = "vector_product"
"""A product by a vector: XLA multiplies, and adds, in the kernel that makes the
operands, or in one that reads them for another array."""


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
      masks: numbers of those that are truth values.
    """

    def __init__(self):
        self.operations: list[_Operation] = []
        self.sizes: list[int] = []
        self.masks: set[int] = set()

    def value(self, variable: Any) -> int:
        """Adds a value."""
        shaped = variable.aval
        number = len(self.sizes)
        self.sizes.append(math.prod(shaped.shape) * shaped.dtype.itemsize)
        if shaped.dtype == bool:
            self.masks.add(number)
        return number

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
                if name == "dot_general" and 1 in (sizes := _sizes(equation)[1:]):
                    # XLA multiplies, and adds, in the kernel that makes the operands.
                    name = "mul" if sizes[2] == 1 else SUM
                self.operations.append(_Operation(name, own, outputs))  # pyright: ignore
            pairs = zip(equation.outvars, outputs, strict=True)
            numbers |= {v: n for v, n in pairs if n is not None}
        return numbered(jaxpr.outvars)

    def ordered(
        self, loss: int | None, wanted: Iterable[int], early: Collection[str]
    ) -> tuple[list[_Operation], int]:
        """Returns the operations up to that which makes the loss, then those that some
        values need, in their order, and the others after them; and how many the first
        are. Others of some names, which make less than they read, are not put off."""
        made = (i for i, each in enumerate(self.operations) if loss in each.outputs)
        forward = next(made, -1) + 1
        backward, needed = self.operations[forward:], set(wanted)
        for operation in reversed(backward):
            if not needed.isdisjoint(operation.outputs):
                needed.update(operation.inputs)
        parts: tuple[list[_Operation], ...] = [], []
        put_off: set[int] = set()
        for operation in backward:
            name, inputs, outputs = operation
            frees = name in early and put_off.isdisjoint(inputs)
            frees = frees and self._largest(outputs) < self._largest(inputs)
            is_put_off = needed.isdisjoint(outputs) and not frees
            put_off.update(outputs if is_put_off else ())
            parts[is_put_off].append(operation)
        return [*self.operations[:forward], *parts[0], *parts[1]], forward

    def _largest(self, numbers: Iterable[int]) -> int:
        """Returns the bytes of the largest of some values."""
        return max((self.sizes[number] for number in numbers), default=0)

    def operands(self) -> set[int]:
        """Returns the values that products read."""
        found: set[int] = set()
        for name, of_operation, results in reversed(self.operations):
            if name in PRODUCTS or (name in VIEWS and found.intersection(results)):
                found.update(of_operation)
        return found


def _flat(
    function: Callable[..., Any], held: Any, inputs: tuple[Any, ...]
) -> tuple[_Program, set[int], list[int | None]]:
    """Returns the program of ``(held, *inputs) -> …``, and the numbers of its inputs,
    but for what is held, and of its results."""
    jaxpr = jax.make_jaxpr(function)(held, *inputs).jaxpr
    program, there = _Program(), len(jax.tree.leaves(held))
    of_inputs = {variable: program.value(variable) for variable in jaxpr.invars[there:]}
    results = program.add(jaxpr, dict(of_inputs))
    return program, set(of_inputs.values()), results


def products(forward: Callable[..., Any], *inputs: Any) -> list[tuple[int, ...]]:
    """Returns the sizes of each product of a program: batch, left, right, inner. A loop
    multiplies the batch, by the turns that its name declares if they are not known; of
    branches the one with most work counts.

    Args:
      forward: the program.
      inputs: its arguments, arrays or shapes.
    """

    def found(jaxpr: Jaxpr, times: int) -> Iterator[tuple[int, ...]]:
        for equation in jaxpr.eqns:
            name, params = equation.primitive.name, equation.params
            if name == "dot_general":
                batch, *sizes = _sizes(equation)
                yield times * batch, *sizes
            declared = declared_turns(str(equation.source_info.name_stack))
            turns = params.get("length", declared if name == "while" else 1)
            called = [[*found(each, times * turns)] for each in _called(params)]
            if name == "cond":
                called = [max(called, key=lambda each: sum(map(math.prod, each)))]
            yield from itertools.chain(*called)

    return [*found(jax.make_jaxpr(forward)(*inputs).jaxpr, 1)]


def _sizes(product: Any) -> tuple[int, int, int, int]:
    """Returns the sizes of a product: batch, left, right, inner."""
    (inner, _), (batch, _) = product.params["dimension_numbers"]
    left, right = (variable.aval.shape for variable in product.invars)
    k, b = (math.prod(left[i] for i in of) for of in (inner, batch))
    return b, math.prod(left) // (k * b), math.prod(right) // (k * b), k


def _called(params: Mapping[str, Any]) -> Iterator[Jaxpr]:
    """Yields the programs that an operation's parameters name."""
    for value in params.values():
        for each in value if isinstance(value, tuple) else (value,):
            jaxpr = getattr(each, "jaxpr", each)
            if isinstance(jaxpr, Jaxpr):
                yield jaxpr


def kept_and_most_bytes(
    gradients: Callable[..., Any],
    parameters: int,
    late: bool,
    held: Any,
    *inputs: Any,
    alone: bool = False,
) -> tuple[int, int]:
    """Returns the bytes of the arrays that backward needs from forward, and of those
    that are there at once at most, inputs included.

    Operations run in the order in which they were traced. An elementwise result is made
    where it is read, but as an array where a product reads it, or where it is smaller
    than what would have to stay for it and was read anyway, such as a mask; it lies
    where an operand of its size was that nothing reads any more. A product by a vector
    is made where backward first makes an array of all that it reads.

    Args:
      gradients: ``(held, *inputs) -> loss, gradients`` of parameters and embeddings.
      parameters: number of the former.
      late: whether in backward what these alone need is done last, or what the latter
        alone need.
      held: trees of arrays that are there anyway, such as parameters.
      inputs: the other arguments, arrays or shapes.
      alone: whether products that free more than they make are not put off, as on a
        single device, whose operations XLA orders by memory.
    """
    program, of_inputs, results = _flat(gradients, held, inputs)
    operands, sizes = program.operands(), program.sizes
    of_parameters, large = (
        {number for number in some if number is not None}
        for some in (results[1 : 1 + parameters], results[1 + parameters :])
    )
    early = PRODUCTS if alone else ()
    operations, forward = program.ordered(
        results[0], large if late else of_parameters, early
    )
    end = len(operations)
    made_large = max(
        (i for i, each in enumerate(operations) if large.intersection(each.outputs)),
        default=0,
    )
    readers = Counter(n for each in operations for n in each.inputs)
    sources = {number: {number} for number in of_inputs}
    begin, last = dict.fromkeys(of_inputs, 0), dict.fromkeys(of_inputs, 0)
    made_here: list[tuple[int, set[int]]] = []
    kernels: list[tuple[int, set[int]]] = []  # of backward: when, and what they read
    of_mask: dict[int, set[int]] = {}  # what masks were made of
    shared: set[int] = set()  # made again of what others read, too
    for time, (name, of_operation, made) in enumerate(operations):
        made_of = set().union(*(sources[number] for number in of_operation))
        done = time
        if name == SUM:
            done = next((at for at, read in kernels if made_of <= read), time)
        last |= {number: max(last[number], done) for number in made_of}
        is_shared = any(readers[n] > 1 or n in shared for n in of_operation)
        for number in made:
            is_mask = is_shared and number in program.masks
            is_mask &= sizes[number] < sum(sizes[n] for n in made_of)
            is_array = is_mask or number in operands | large
            is_view = name in VIEWS and len(made_of) == 1
            is_elementwise = name in ELEMENTWISE
            if is_elementwise and (is_view or not is_array):
                sources[number] = made_of
                shared.update([number] if is_shared else [])
            else:
                sources[number] = {number}
                begin[number] = last[number] = time
                if is_elementwise and number in large:
                    begin[number] = made_large + 1
                elif is_elementwise or name == "optimization_barrier":
                    made_here.append((number, made_of))
                    of_mask |= {number: made_of} if is_mask else {}
                    if time >= forward:
                        of_masks = (of_mask.get(n, set()) for n in made_of)
                        kernels.append((time, made_of.union(*of_masks)))
    for number in of_parameters | large:
        last |= dict.fromkeys(sources[number], end)
    for number, made_of in made_here:
        time = begin[number]
        for each in made_of & begin.keys():
            if last[each] == time and sizes[each] == sizes[number]:
                last[each] = time - 1
                break
    changes = [0] * (end + 2)
    for number, time in begin.items():
        changes[time] += sizes[number]
        changes[last[number] + 1] -= sizes[number]
    there = [n for n, time in begin.items() if time < forward <= last[n]]
    return sum(sizes[n] for n in there), max(itertools.accumulate(changes))
