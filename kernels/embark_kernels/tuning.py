"""Finds the best block sizes of the kernels, and keeps them for each kind of GPU.

Winners lie in ``tuned.json``, in the folder of ``_cache``. If it lacks a shape or is
damaged, the heuristic's config is used. No config changes a result.

The processes of one program must agree: ``use`` gives all of them what one has read.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from embark_kernels._cache import add_for_device, cache_file, read_for_device
from embark_kernels.config import LookupConfig, UpdateConfig

Config = TypeVar("Config", LookupConfig, UpdateConfig)
FILE = "tuned.json"
ROUNDS, CALLS = 5, 10
Winners = Mapping[str, Mapping[str, int]]
"""The configs of winners by key."""
_winners_in_use: Winners | None = None


def lookup_key(width: int, dtype: Any, ids: int, bags: int) -> str:
    """Returns the key of ``sum_bags`` and ``pooled_lookup``, which rounds mean bag
    lengths to powers of two."""
    length = max(1, round(ids / max(1, bags)))
    return f"lookup {jax.numpy.dtype(dtype)} {width} {1 << (length - 1).bit_length()}"


def update_key(width: int, dtype: Any, state_widths: dict[str, int]) -> str:
    """Returns the key of ``update_rows``."""
    states = "+".join(map(str, state_widths.values())) or "0"
    return f"update {jax.numpy.dtype(dtype)} {width} {states}"


def tuned(key: str, heuristic: Config) -> Config:
    """Returns the winner for this machine's kind of device, else the heuristic's
    config."""
    winner = (winners() if _winners_in_use is None else _winners_in_use).get(key)
    if winner is None:
        return heuristic
    try:
        return type(heuristic)(**winner)
    except (TypeError, ValueError) as error:
        warnings.warn(
            f"{cache_file(FILE)}: {key!r} is {winner}: {error}; ignored", stacklevel=2
        )
        return heuristic


def winners() -> Winners:
    """Returns all winners of the file for this machine's kind of device."""
    return read_for_device(cache_file(FILE))


def use(winners: Winners | None) -> None:
    """Uses these winners from now on instead of the file's; None uses the file's."""
    global _winners_in_use
    _winners_in_use = winners


def tune(
    key: str,
    candidates: Sequence[Config],
    run: Callable[[Config], Callable[[], Any]],
) -> tuple[Config, dict[Config, float]]:
    """Times candidates on this machine's device and keeps the fastest.

    Args:
      key: a key of ``lookup_key`` or ``update_key``.
      candidates: the configs to try.
      run: turns a candidate into a function without arguments, which is timed.

    Returns:
      The winner, and the median seconds of each.
    """
    seconds = {config: _median_seconds(run(config)) for config in candidates}
    winner = min(candidates, key=seconds.__getitem__)
    add_for_device(cache_file(FILE), {key: dataclasses.asdict(winner)})
    return winner, seconds


def _median_seconds(call: Callable[[], Any]) -> float:
    jax.block_until_ready(call())
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready([call() for _ in range(CALLS)])
        rounds.append((time.perf_counter() - start) / CALLS)
    return statistics.median(rounds)
