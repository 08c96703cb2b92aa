"""Arrays that the processes of a run tell each other without a device.

A message costs some milliseconds, and no step waits for it: the host is ahead of the
devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from embark_jax.launch.agreement import tell_all_bytes


def tell_all_keys(keys: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Tells all processes some ``[n]`` int64 arrays; returns, for each of them, what
    all processes have given, without duplicates and in ascending order.

    All processes must call it equally often, and with as many arrays.
    """
    if jax.process_count() == 1 or not keys:
        return [np.unique(array) for array in keys]
    sizes = np.array([len(array) for array in keys], np.int64)
    keys_by_process = []
    for message in tell_all_bytes(np.concatenate([sizes, *keys]).tobytes(), "keys"):
        words = np.frombuffer(message, np.int64)
        ends = np.cumsum([len(keys), *words[: len(keys)]])
        keys_by_process.append(np.split(words, ends)[1:-1])
    return [
        np.unique(np.concatenate(arrays))
        for arrays in zip(*keys_by_process, strict=True)
    ]
