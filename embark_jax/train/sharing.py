"""Arrays that the processes of a run tell each other without a device.

A message goes through the service that JAX starts processes with, as those of
``checkpoint.agreement`` do. It costs some milliseconds, and no step waits for it: the
host is ahead of the devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import numpy as np
from jax._src import distributed  # JAX has no public name for its service

from embark_jax.train.checkpoint.agreement import WAIT_MS

_numbers = itertools.count()


def tell_all_keys(keys: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Tells all processes some ``[n]`` int64 arrays; returns, for each of them, what
    all processes have given, without duplicates and in ascending order.

    All processes must call it equally often, and with as many arrays.
    """
    client, me = distributed.global_state.client, jax.process_index()
    if jax.process_count() == 1 or client is None or not keys:
        return [np.unique(each) for each in keys]
    number = next(_numbers)
    name = "embark/keys/{}/{}".format
    sizes = np.array([len(each) for each in keys], np.int64)
    client.key_value_set_bytes(
        name(number, me), np.concatenate([sizes, *keys]).tobytes()
    )
    told = []
    for process in range(jax.process_count()):
        text = client.blocking_key_value_get_bytes(name(number, process), WAIT_MS)
        words = np.frombuffer(text, np.int64)
        told.append(np.split(words, np.cumsum([len(keys), *words[: len(keys)]]))[1:-1])
    if number:  # whoever has told this much has read what was told before
        client.key_value_delete(name(number - 1, me))
    return [np.unique(np.concatenate(each)) for each in zip(*told, strict=True)]
