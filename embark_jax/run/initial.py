"""Starts a run from the model of another one (``train.init_from``).

Tables match by name, and their rows by the values that they stand for, or by number
where the data have none. What comes over is said, and kept in ``initial.json``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from embark_jax._base.agreement import differences
from embark_jax._base.config import ConfigError
from embark_jax._base.files import read_json, write_json
from embark_jax._base.storage import file_system_or_bucket, in_bucket
from embark_jax.checkpoint import CheckpointError, chosen_steps
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.reading import SavedCheckpoint
from embark_jax.checkpoint.warm_start import RowMatch, warm_state
from embark_jax.config import ExperimentConfig, PreparedConfig
from embark_jax.data import TableValues
from embark_jax.data import manifest as manifests
from embark_jax.data.prepare.raw_rows import FOLDER as ENCODING
from embark_jax.run.experiment import Experiment
from embark_jax.run.folder import CHECKPOINTS, RunFolder
from embark_jax.run.saved import best_step, read_config
from embark_jax.train.trainer import Trainer

FILE = "initial.json"
"""Name of the file in a run's folder that says what it started from."""
OPTIMIZERS = ("embedding_optimizer", "table_optimizers", "dense_optimizer")
MODEL = ("model", "dense_features")
"""Keys of the identity of a run that must agree."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """A checkpoint that a run starts from.

    Attributes:
      saved: the checkpoint.
      values: what the rows of its tables stand for; None if its data did not say.
    """

    saved: SavedCheckpoint
    values: TableValues | None

    @classmethod
    def open(cls, path: str) -> Origin:
        """Opens a run, at its newest step or the best of one that stopped early, or a
        checkpoint of a run.

        Raises:
          ConfigError, CheckpointError: if there is none, or it is damaged.
          DataError: if its encoding is damaged.
        """
        where, step = file_system_or_bucket(path), None
        if where.name.isdecimal() and where.parent.name == CHECKPOINTS:
            where, step = where.parent.parent, int(where.name)
        run_folder = RunFolder(where)
        run = run_folder.read()
        config = read_config(run)
        folder = CheckpointFolder(run_folder.checkpoints)
        wanted = best_step(run) if step is None else step
        number = chosen_steps(folder.path, folder.steps(), wanted)[0]
        try:
            saved = SavedCheckpoint(folder.path / str(number))
        except CheckpointError as error:
            raise CheckpointError(
                f"train.init_from: {folder.path / str(number)} is damaged ({error}); "
                "name an older checkpoint of the run"
            ) from None
        return cls(saved, _values(run, config, saved))

    @property
    def step(self) -> int:
        """Step of the checkpoint."""
        return self.saved.description.step


def _values(
    run: Path, config: ExperimentConfig, saved: SavedCheckpoint
) -> TableValues | None:
    """Returns what the rows of a run's tables stand for: its encoding says it, or the
    data that it was trained on, if they are still there."""
    if (run / ENCODING / manifests.FILE_NAME).exists():
        return TableValues(run / ENCODING, manifests.read(run / ENCODING))
    data = config.data
    if not isinstance(data, PreparedConfig) or in_bucket(data.path):
        return None
    if data.path.exists():
        manifest = manifests.read(data.path)
        if manifest.digest() == saved.description.identity["data"]["files"]:
            return TableValues(data.path, manifest)
    return None


def first_step(config: ExperimentConfig, workdir: Path, resume: bool) -> int:
    """Returns the number of steps that were trained before a run begins: those of the
    run that it continues, if it does.

    Raises:
      ConfigError, CheckpointError, DataError: if ``train.init_from`` cannot be used.
    """
    path = config.train.init_from
    if path is None or config.train.init_optimizer == "new":
        return 0
    if resume and (workdir / FILE).exists():
        return read_json(workdir / FILE, "begin the run anew")["first_step"]
    return Origin.open(path).step


def start(
    setup: Experiment, trainer: Trainer, workdir: Path, say: Callable[[str], None]
) -> None:
    """Fills a new trainer with what comes over from ``train.init_from``.

    Raises:
      ConfigError: if model, features, tables or optimizers do not fit.
      CheckpointError, DataError: if the checkpoint, or a vocabulary, is damaged.
    """
    options = setup.config.train
    assert options.init_from is not None
    origin = Origin.open(options.init_from)
    keep = options.init_optimizer == "keep"
    _check(origin, setup, keep)
    matches = row_matches(origin, setup, keep)
    state = warm_state(
        origin.saved, trainer.state_to_fill(), trainer.embeddings, matches, keep
    )
    trainer.restore(state)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    optimizers = f"its optimizers' state; steps go on at {trainer.step:,}"
    say(
        f"starts from {origin.saved.folder}: {parameters:,} dense parameters, "
        + (optimizers if keep else "and new optimizers")
    )
    record: dict[str, Any] = {}
    for table in setup.tables:
        if table.is_dynamic:
            record[table.name] = {}
            say(f"  table {table.name}: the rows of all keys come over")
            continue
        counts = _counts(matches.get(table.name), table.rows)
        record[table.name] = counts
        say(
            f"  table {table.name}: {counts['kept']:,} rows come over, "
            f"{counts['new']:,} are new, {counts['gone']:,} old ones are gone"
        )
    dropped = sorted(origin.saved.description.tables.keys() - record.keys())
    for name in dropped:
        say(f"  table {name}: is not in this model, no row comes over")
    for name in _refitted(origin, setup):
        say(
            f"  warning: column {name} has another transform than in the run before; "
            "prepare the data with --extend to keep it"
        )
    if jax.process_index() == 0:
        begun = {"from": str(origin.saved.folder), "first_step": trainer.step}
        write_json(workdir / FILE, {**begun, "tables": record, "dropped": dropped})


def row_matches(
    origin: Origin, setup: Experiment, keep_optimizer: bool
) -> dict[str, RowMatch]:
    """Returns which rows of a checkpoint's tables are rows of a model's; nothing of
    dynamic tables, whose rows match by key.

    Raises:
      ConfigError: if the rows of a table cannot be matched.
    """
    there: Mapping[str, Any] = origin.saved.description.identity["tables"]
    matches, problems = {}, []
    for table in setup.tables:
        if table.name not in there:
            continue
        was_dynamic = there[table.name]["rows"] is None
        if table.is_dynamic and was_dynamic and keep_optimizer:
            continue  # all of its rows come over, by key
        if table.is_dynamic or was_dynamic:
            problems.append(
                f"table {table.name!r}: must be dynamic in both runs, which have one "
                "optimizer, or in neither"
            )
            continue
        try:
            match = _row_match(
                table.name,
                there[table.name]["rows"],
                table.rows,
                origin.values,
                setup.description.values,
            )
        except ConfigError as error:
            problems.append(str(error))
            continue
        if match is not None:
            matches[table.name] = match
    if problems:
        raise ConfigError(
            "\n  ".join(["train.init_from: rows do not match:", *problems])
        )
    return matches


def _row_match(
    name: str,
    rows_there: int,
    rows_here: int,
    there: TableValues | None,
    here: TableValues | None,
) -> RowMatch | None:
    """Returns the match of one table; None if nothing of it comes over."""
    meaning = None if there is None else there.meaning(name)
    own = None if here is None else here.meaning(name)
    kinds = [m.kind if m else "numbers" for m in (meaning, own)]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"table {name!r}: its rows stand for {kinds[0]} in the run before, for "
            f"{kinds[1]} here, must stand for the same; prepare the data alike, and "
            "keep those of the run before where its config says"
        )
    if kinds[0] != "values":
        if kinds[0] == "ranges" and meaning != own:
            return None  # other ranges: all rows are new
        if rows_there != rows_here:
            raise ConfigError(
                f"table {name!r}: has {rows_there:,} rows in the run before, "
                f"{rows_here:,} here, must have as many, since nothing says which "
                "values they stand for"
            )
        return RowMatch(rows_there)
    assert there is not None
    assert here is not None
    targets = there.row_numbers_in(here, name)[:rows_there]
    targets[targets >= rows_here] = -1  # of a table that is smaller than its data
    match = RowMatch.of(targets)
    if match.targets is None and meaning == own and rows_there == rows_here:
        return RowMatch(rows_there)  # with its spare rows
    return match


def _check(origin: Origin, setup: Experiment, keep_optimizer: bool) -> None:
    """Raises ``ConfigError`` unless a checkpoint's model is this one."""

    def described(identity: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what must agree of an identity."""
        keys = (*MODEL, *OPTIMIZERS) if keep_optimizer else MODEL
        features = {
            name: {k: v for k, v in feature.items() if k != "hotness"}
            for name, feature in identity["features"].items()
        }
        both = theirs["tables"].keys() & ours["tables"].keys()
        tables = {
            name: {k: v for k, v in identity["tables"][name].items() if k != "rows"}
            for name in both
        }
        values = {key: identity.get(key, {}) for key in keys}
        return values | {"features": features, "tables": tables}

    theirs, ours = origin.saved.description.identity, setup.identity
    there, here = described(theirs), described(ours)
    if lines := differences(there, here, "in the run before"):
        rule = "must agree in model, features, and the dims of tables"
        if keep_optimizer:
            rule += (
                ", and in optimizers, unless train.init_optimizer=new begins with new "
                "ones"
            )
        raise ConfigError(
            "\n  ".join([f"train.init_from: {origin.saved.folder}:", *lines, rule])
        )


def _counts(match: RowMatch | None, rows: int) -> dict[str, int]:
    """Returns how many of a table's ``rows`` come over, and how many are new; and how
    many of the run before are gone."""
    if match is None:
        return {"kept": 0, "new": rows, "gone": 0}
    kept = match.matched
    return {"kept": kept, "new": rows - kept, "gone": match.count - kept}


def _refitted(origin: Origin, setup: Experiment) -> Iterator[str]:
    """Yields the columns of numbers that have other transforms than before."""
    if origin.values is None or setup.description.values is None:
        return
    before = origin.values.manifest.numbers
    for name, fitted in setup.description.values.manifest.numbers.items():
        if before.get(name) not in (None, fitted):
            yield name
