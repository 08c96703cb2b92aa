"""Reads experiment configs in YAML and gin, and writes them in YAML.

Both syntaxes become one nested mapping, which ``validation`` checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embark_jax._base import yaml_text
from embark_jax._base.config import ConfigError
from embark_jax._base.storage import local
from embark_jax._base.validation import listed, short, validated
from embark_jax.config import ExperimentConfig, gin_files
from embark_jax.config.table_lists import experiment_of
from embark_jax.planner.request.table_list import read_table_list

SHIPPED = Path(__file__).parents[1] / "config_files"
"""``configs``: a link in a checkout, a folder in a built package."""


def shipped() -> dict[str, Path]:
    """Returns the configs that come with the package, by name."""
    return {
        path.relative_to(SHIPPED).with_suffix("").as_posix(): path
        for pattern in ("*.yaml", "experiments/*/*.yaml")
        for path in SHIPPED.glob(pattern)
    }


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    point: Mapping[str, Any] | None = None,
) -> ExperimentConfig:
    """Reads an experiment config.

    Args:
      path: path of a ``.yaml``, ``.yml`` or ``.gin`` file, or of a table list in YAML,
        which stands for its model on synthetic data.
      overrides: changes to the file, each ``dotted.key=value`` with the value in YAML,
        such as ``"train.batch_size=4096"`` or ``"model.bottom=[64, 16]"``. The last one
        of a key wins. Changing the ``kind`` of a section drops the keys of the file
        that the new kind does not have. ``scale=0.001`` shrinks the experiment after
        all other overrides, as ``ExperimentConfig.shrunk`` does.
      point: values by dotted key that a trial of the config's ``search`` has. They take
        precedence over all else, and the config then has no such section.

    Raises:
      ConfigError: with every problem of the file and the overrides: dotted key, value
        and rule, one a line. Rules between several keys are checked once each key is
        right by itself.
    """
    path = local(path)
    readers = {".yaml": _read_yaml, ".yml": _read_yaml, ".gin": gin_files.read}
    if path.suffix not in readers:
        raise ConfigError(f"{path}: must end in {', '.join(readers)}")
    try:
        data = readers[path.suffix](path)
    except OSError as error:
        hint = _shipped_hint(path) if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"{error.filename}: {error.strerror}{hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error})") from None

    changes = list(overrides)
    if point is not None:
        tried = (f"{key}={json.dumps(value)}" for key, value in point.items())
        changes += ["search=null", *tried]
    source = f"{path} with {', '.join(changes)}" if changes else str(path)
    scales = [change for change in changes if change.startswith("scale=")]
    others = [change for change in changes if change not in scales]
    config = validated(ExperimentConfig, data, others, source)
    if not scales:
        return config
    try:
        return _shrunk(config, scales[-1].removeprefix("scale="))
    except ConfigError as error:
        raise listed(source, {"scale": str(error)}) from None


def _shipped_hint(path: Path) -> str:
    """Says how to get a config that comes with the package; "" if it is none."""
    name = path.with_suffix("").as_posix().rpartition("configs/")[2]
    if name not in shipped():
        return ""
    return (
        f"; it comes with the package: `embark init {path} --example {name}` writes it"
    )


def _shrunk(config: ExperimentConfig, text: str) -> ExperimentConfig:
    scale = yaml_text.parse(text)
    if not isinstance(scale, int | float) or not 0 < scale <= 1:
        raise ConfigError(f"{text} given, must be a number above 0, and at most 1")
    return config.shrunk(scale)


def dump_yaml(config: ExperimentConfig) -> str:
    """Returns the whole config, defaults included, as YAML that loads back equal.

    A key that is not set (``None``) is left out.
    """
    data = config.model_dump(mode="json", exclude_none=True)
    return yaml_text.dump(data)


def save(config: ExperimentConfig, path: str | Path) -> None:
    """Writes ``dump_yaml(config)``."""
    local(path).write_text(dump_yaml(config), "utf-8")


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
        data = yaml_text.parse(text)
        if isinstance(data, dict) and "tables" in data:
            data = {"name": path.stem, **experiment_of(read_table_list(text))}
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None
    if data is None:
        raise ConfigError(f"{path}: is empty, must be a mapping with at least data")
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: {short(data)} given, must be a mapping of sections (data, …)"
        )
    return data
