"""Collectives: nccl-tests on other people's clusters, priced as planner and simulator
price them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from embark_jax.planner.cost.rates import Rates
from embark_jax.plans.traffic import all_to_all_bytes
from experiments.predicted_measured.cases import Case, Constants, fleet_of, measured


def predicted(record: dict[str, Any], constants: Constants) -> float:
    """Returns the price of a collective, in microseconds."""
    machines = fleet_of(record, constants)
    rates, buffer_bytes = Rates(machines), record["bytes"]
    match record["collective"]:
        case "all-reduce":
            return 1e3 * rates.all_reduce_ms(buffer_bytes)
        case "all-gather" | "reduce-scatter":
            return 1e3 * rates.all_gather_ms(buffer_bytes)
        case "all-to-all":
            sent = all_to_all_bytes(
                buffer_bytes, machines.nodes, machines.gpus_per_node
            )
            return 1e3 * float(rates.links_ms(sent, rates.exchange_us))
    raise ValueError(f"{record['name']}: no price of {record['collective']!r}")


def cases(constants: Constants) -> Iterator[Case]:
    """Yields a case for each collective, machine and size."""
    for record, address in measured("collectives"):
        yield Case(
            "collectives",
            record["name"],
            "µs",
            record["us"],
            predicted(record, constants),
            address,
        )
