"""Reads experiment configs in YAML and gin, and writes them in YAML.

Both syntaxes become one nested mapping, which ``validation`` checks. So does a table
list, in YAML or JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embark_jax._base import yaml_text
from embark_jax._base.config import ConfigError, nearest, read_text
from embark_jax._base.object_store import local
from embark_jax._base.validation import listed, short, validated
from embark_jax.config import ExperimentConfig, gin_files
from embark_jax.config.table_lists import TableList, experiment_of, read_table_list

SHIPPED = Path(__file__).parents[1] / "config_files"
"""``configs``: a link in a checkout, a folder in a built package."""


def shipped() -> dict[str, Path]:
    """Returns the configs and table lists that come with the package, by name."""
    configs = {
        path.relative_to(SHIPPED).with_suffix("").as_posix(): path
        for pattern in ("*.yaml", "experiments/*/*.yaml")
        for path in SHIPPED.glob(pattern)
    }
    return configs | {path.stem: path for path in SHIPPED.glob("models/*.yaml")}


def load(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Reads an experiment config.

    Args:
      path: path of a ``.yaml``, ``.yml`` or ``.gin`` file; or of a table list, also in
        ``.json``, which stands for its model on synthetic data; or the name of one that
        comes with the package, such as ``quickstart`` or ``t180``.
      overrides: changes to the file, each ``dotted.key=value`` with the value in YAML,
        such as ``"train.batch_size=4096"`` or ``"model.bottom=[64, 16]"``. The last one
        of a key wins. Changing the ``kind`` of a section drops the keys of the file
        that the new kind does not have. ``scale=0.001`` shrinks the experiment after
        all other overrides, as ``ExperimentConfig.shrunk`` does.

    Raises:
      ConfigError: with every problem of the file and the overrides: dotted key, value
        and rule, one a line. Rules between several keys are checked once each key is
        right by itself.
    """
    path = _file(path)
    data = _read(path)
    source = f"{path} with {', '.join(overrides)}" if overrides else str(path)
    scales = [change for change in overrides if change.startswith("scale=")]
    others = [change for change in overrides if change not in scales]
    config = validated(ExperimentConfig, data, others, source)
    if config.fleet is not None and "gpus_per_node" not in config.mesh.model_fields_set:
        from embark_jax.plans import fleet as fleets

        gpus = fleets.load(config.fleet).gpus_per_node
        others.append(f"mesh.gpus_per_node={gpus}")
        config = validated(ExperimentConfig, data, others, source)
    if scales:
        try:
            config = config.shrunk(yaml_text.parse(scales[-1].removeprefix("scale=")))
        except ConfigError as error:
            raise listed(source, {"scale": str(error)}) from None
    return config


def load_table_list(source: str | Path) -> TableList:
    """Reads a table list from a file, or that of a published model by its name.

    Args:
      source: a path, or a name in ``configs/models`` such as "t180".

    Raises:
      ConfigError: if it is invalid; the message has the path and every problem.
    """
    path = _file(source)
    try:
        return read_table_list(read_text(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _file(source: str | Path) -> Path:
    """Returns the file that a user names, by its path or as one of the package.

    Raises:
      ConfigError: if it names neither.
    """
    path, of_package = local(source), shipped()
    if path.is_file() or (path.exists() and str(source) not in of_package):
        return path
    if str(source) in of_package:
        return of_package[str(source)]
    name = path.with_suffix("").as_posix().rpartition("configs/")[2]
    name = name.removeprefix("models/")
    if path.suffix and name not in of_package:
        return path  # of which opening it says what is wrong
    raise ConfigError(
        f"{source}: no such file, and nothing of this name comes with the package; "
        + nearest(name, of_package)
    )


def save(config: ExperimentConfig, path: str | Path) -> None:
    """Writes the whole config, defaults included, as YAML that loads back equal. A key
    that is not set (``None``) is left out."""
    data = config.model_dump(mode="json", exclude_none=True)
    local(path).write_text(yaml_text.dump(data), "utf-8")


def _read(path: Path) -> dict[str, Any]:
    """Returns a file's mapping; of a table list the one that it stands for."""
    if path.suffix == ".gin":
        return gin_files.read(path)
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError(f"{path}: must end in .yaml, .yml, .json, .gin")
    text = read_text(path)
    try:
        data = [] if path.suffix == ".json" else yaml_text.parse(text)
        if isinstance(data, list) or (isinstance(data, dict) and "tables" in data):
            return {"name": path.stem, **experiment_of(read_table_list(text))}
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None
    if data is None:
        raise ConfigError(f"{path}: is empty, must be a mapping with at least data")
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: {short(data)} given, must be a mapping of sections (data, …), or "
            "a list of tables"
        )
    return data
