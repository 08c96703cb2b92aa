"""Messages that processes exchange outside of training, without a device.

Collectives of devices give up when a process is late, such as one with a slow disk. The
service that JAX starts processes with waits for as long as its caller wants.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax
from jax._src import distributed  # JAX has no public name for its service

WAIT_MS = 24 * 3600 * 1000
"""Longer than any disk takes; the end of a process ends the wait, too."""
_numbers: defaultdict[str, itertools.count] = defaultdict(itertools.count)


def tell_all(value: Any, topic: str = "checkpoint") -> list[Any]:
    """Tells all processes a JSON-like value, and returns those of all, in their order.

    All processes must call it equally often for each topic.
    """
    client, me = distributed.global_state.client, jax.process_index()
    if jax.process_count() == 1 or client is None:
        return [value]
    number = next(_numbers[topic])
    name = f"embark/{topic}/{{}}/{{}}".format
    client.key_value_set_bytes(name(number, me), json.dumps(value).encode())
    values = [
        json.loads(client.blocking_key_value_get_bytes(name(number, process), WAIT_MS))
        for process in range(jax.process_count())
    ]
    if number:  # whoever has told this much has read what was told before
        client.key_value_delete(name(number - 1, me))
    return values


def processes_of_run() -> int:
    """Returns the number of processes, also before JAX has devices."""
    return distributed.global_state.num_processes


def from_process_0(value: Any) -> Any:
    """Returns, in all processes, the JSON-like value that process 0 gave."""
    first = jax.process_index() == 0
    return tell_all(value if first else None, "process 0")[0]


def total(counts: Mapping[str, int]) -> dict[str, int]:
    """Sums counts with the same names over all processes."""
    all_counts = tell_all(dict(counts), "counts")
    return {name: sum(each[name] for each in all_counts) for name in counts}
