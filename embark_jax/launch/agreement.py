"""Messages that processes exchange outside of training, without a device.

Collectives of devices give up when a process is late, such as one with a slow disk. The
service that JAX starts processes with waits for as long as its caller wants.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import jax
from jax._src import distributed  # JAX has no public name for its service

WAIT_MS = 24 * 3600 * 1000
"""Longer than any disk takes; the end of a process ends the wait, too."""
_numbers: defaultdict[str, itertools.count] = defaultdict(itertools.count)


def tell_all(text: str) -> list[str]:
    """Tells all processes a text about checkpoints, as ``tell_all_bytes`` does."""
    return [message.decode() for message in tell_all_bytes(text.encode(), "checkpoint")]


def tell_all_bytes(message: bytes, topic: str) -> list[bytes]:
    """Tells all processes a message, and returns the messages of all, in their order.

    All processes must call it equally often for each topic.
    """
    client, me = distributed.global_state.client, jax.process_index()
    if jax.process_count() == 1 or client is None:
        return [message]
    number = next(_numbers[topic])
    name = f"embark/{topic}/{{}}/{{}}".format
    client.key_value_set_bytes(name(number, me), message)
    messages = [
        client.blocking_key_value_get_bytes(name(number, process), WAIT_MS)
        for process in range(jax.process_count())
    ]
    if number:  # whoever has told this much has read what was told before
        client.key_value_delete(name(number - 1, me))
    return messages
