"""Sweeps: runs of one config with every combination of the values that it lists."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from embark_jax._base.config import ConfigError
from embark_jax.config import reading
from embark_jax.run.trials import Kind, Trial

METRICS = {"test_auc": "test AUC", "test_log_loss": "test log loss"}
MAX_NAME_BYTES = 250
"""Longer names of folders are shortened: file systems take 255 bytes, ".log"
included."""
REPEATS = "seed"
"""Runs that differ only in this key share a line, with mean and spread."""


class Sweep:
    """All combinations of the values in a config's ``sweep``, the last key fastest.

    Args:
      path, overrides: as in ``reading.load``.

    Attributes:
      config: config with ``sweep``.
      trials: one for each combination; its folder is named after its values, such as
        "seed=0,train.steps=100"; or after their digest, where that makes no name.

    Raises:
      ConfigError: if ``sweep`` lists nothing or a value twice, or a combination is no
        valid config.
    """

    kind: Kind = "sweep"

    def __init__(self, path: Path, overrides: Sequence[str] = ()):
        self.config = reading.load(path, overrides)
        lists = self.config.sweep
        if not lists:
            raise ConfigError(
                f"{path}: sweep lists no values, must be such as "
                "sweep: {seed: [0, 1, 2], train.steps: [100, 200]}"
            )
        self.trials: list[Trial] = []
        for number, combination in enumerate(itertools.product(*lists.values())):
            values = dict(zip(lists, combination, strict=True))
            config = reading.load(path, overrides, values)
            name = _folder_name(values)
            for trial in self.trials:
                if trial.name == name or trial.config == config:
                    raise ConfigError(f"{path}: sweep lists {trial.name} twice")
            self.trials.append(Trial(number, name, values, config))

    def rounds(self, jobs: int) -> Iterator[Sequence[Trial]]:
        """Yields all trials at once: none of them waits for another."""
        yield self.trials

    def tell(
        self, trial: Trial, record: Mapping[str, Any], folder: Path
    ) -> Mapping[str, Any]:
        """Returns nothing more: results do not change what is tried."""
        return {}

    def summary(self, results: Sequence[Mapping[str, Any]]) -> Table:
        """Returns a table with a line for each setting; several seeds give mean ±
        deviation."""
        keys = list(self.config.sweep or ())
        repeated = REPEATS in keys
        keys = [key for key in keys if key != REPEATS]
        table = Table(title="mean ± standard deviation" if repeated else None)
        for key in keys:
            table.add_column(key, overflow="fold")  # shown whole, however narrow
        for heading in ("runs", *METRICS.values()) if repeated else METRICS.values():
            table.add_column(heading, justify="right")
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for trial, result in zip(self.trials, results, strict=False):
            setting = _text([trial.values[key] for key in keys])
            groups.setdefault(setting, []).append(result)
        for members in groups.values():
            cells = [_text(members[0][key]) for key in keys]
            if repeated:
                cells.append(str(len(members)))
            table.add_row(*cells, *(_mean_and_spread(members, key) for key in METRICS))
        return table


def _mean_and_spread(results: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [result[key] for result in results if result.get(key) is not None]
    diverged = sum("diverged" in result for result in results)
    words = []
    if values:
        words.append(f"{np.mean(values):.5f}")
    if len(values) > 1:
        words.append(f"± {np.std(values, ddof=1):.5f}")
    if diverged:
        words.append(f"{diverged} diverged" if len(results) > 1 else "diverged")
    return " ".join(words) or "–"


def _folder_name(values: Mapping[str, Any]) -> str:
    named = ",".join(f"{key}={_text(value)}" for key, value in values.items())
    named = named.replace("/", "-")
    if named.isprintable() and len(named.encode()) <= MAX_NAME_BYTES:
        return named
    digest = hashlib.sha256(named.encode()).hexdigest()
    return f"{','.join(values)[:50]}={digest[:16]}"


def _text(value: Any) -> str:
    """Formats a value as in a config, but names without quotes."""
    return value if isinstance(value, str) else json.dumps(value)
