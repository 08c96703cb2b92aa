"""The configs of a run, and the steps that each of them trained.

``config.yaml`` is the current config. ``configs/STEP.yaml`` is the one that trained the
steps after STEP, up to that of the next such file.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embark_jax._base.config import ConfigError
from embark_jax._base.files import replacing
from embark_jax.config import ExperimentConfig, reading

CURRENT, FOLDER = "config.yaml", "configs"

MAY_CHANGE = (
    "name",
    "fleet",
    "mesh.*",
    "data.path",
    "train.steps",
    "train.epochs",
    "train.early_stopping*",
    "train.plateau*",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_*",
    "train.trackers*",
    "train.keep_checkpoints",
    "train.micro_batches",
    "train.dense",
    "train.dense_wire",
    "train.overlap",
    *(f"dense_optimizer.{key}" for key in ("learning_rate", "eps", "weight_decay")),
    *(f"embedding.optimizer.{key}" for key in ("learning_rate", "eps", "beta*")),
    "embedding.optimizer.weight_decay",
    "embedding.optimizer.schedule.*",
    *(
        f"embedding.tables.*.optimizer.{key}"
        for key in ("learning_rate", "eps", "beta*", "weight_decay", "schedule.*")
    ),
    "embedding.capacity_slack",
    "embedding.on_bad_id",
    "embedding.wire.*",
    "embedding.kernels",
    "embedding.scratch",
    "model.compute_dtype",
    *(
        f"embedding.tables.*.{key}"
        for key in (
            "cluster",
            "row_shards",
            "column_shards",
            "devices",
            "exchange",
            "hot_rows",
            "tier",
            "slots",
            "evict",
        )
    ),
)
"""Keys of a config that may have another value when a run is resumed. The others set
the model, its initial state, and the order of the data."""


def changes(workdir: Path, config: ExperimentConfig) -> list[str]:
    """Returns in words the keys in which a config differs from a run's config.

    Args:
      workdir: folder of the run.
      config: config with which the run is resumed.

    Raises:
      ConfigError: if a key differs that must not, or there is no config of the run.
    """
    path = workdir / CURRENT
    if not path.exists():
        raise ConfigError(
            f"{path}: is missing, and the checkpoints beside it were trained with it; "
            f"copy the newest file of {workdir / FOLDER} there, or begin anew in "
            "another --workdir"
        )
    before, now = map(_leaves, (reading.load(path), config))
    words = {
        key: f"{key} is {before.get(key, 'not set')} in the run so far, "
        f"{now.get(key, 'not set')} here"
        for key in sorted(before | now)
        if before.get(key) != now.get(key)
    }
    if refused := [text for key, text in words.items() if not _may_change(key)]:
        raise ConfigError(
            "\n  ".join([f"{workdir}: cannot be resumed with this config:", *refused])
            + f"\nonly these keys may change: {', '.join(MAY_CHANGE)}"
        )
    return list(words.values())


def record(workdir: Path, config: ExperimentConfig, step: int) -> None:
    """Records that this config trains a run from ``step`` on."""
    current, folder = workdir / CURRENT, workdir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    trained = {int(p.stem): p for p in folder.glob("*.yaml") if p.stem.isdecimal()}
    for start in [start for start in trained if start >= step]:
        trained.pop(start).unlink()  # its steps are trained again
    if step and not trained and current.exists():  # a run of before there were these
        trained[0] = folder / "0.yaml"
        trained[0].write_bytes(current.read_bytes())
    text = reading.dump_yaml(config)
    if not trained or trained[max(trained)].read_bytes() != text.encode():
        (folder / f"{step}.yaml").write_text(text, "utf-8")
    with replacing(current) as scratch:
        scratch.write_text(text, "utf-8")


def _may_change(key: str) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in MAY_CHANGE)


def _leaves(config: ExperimentConfig) -> dict[str, Any]:
    """Returns the values that are set, by dotted key."""

    def visit(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from visit(inner, (*path, key))
        else:
            yield ".".join(path), value

    return dict(visit(config.model_dump(mode="json", exclude_none=True), ()))
