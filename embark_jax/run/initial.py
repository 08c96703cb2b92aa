"""Starts a run from the model of another one (``train.init_from``).

Tables match by name, and their rows by number: the first rows of a table are those of
the run before, whose data these must extend. Rows of dynamic tables match by key. What
comes over is said, and kept in ``initial.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from embark_jax._base.agreement import OPTIMIZERS, WARM_START, differences, parts
from embark_jax._base.config import ConfigError
from embark_jax._base.files import read_json, write_json
from embark_jax._base.object_store import in_bucket
from embark_jax.checkpoint.reading import SavedCheckpoint
from embark_jax.checkpoint.restoring import warm_state
from embark_jax.config import ExperimentConfig, PreparedConfig
from embark_jax.data import TableValues
from embark_jax.data import manifest as manifests
from embark_jax.data.encoding import FOLDER as ENCODING
from embark_jax.run.experiment import Experiment
from embark_jax.run.saved import SavedRun
from embark_jax.train.trainer import Trainer

FILE = "initial.json"
"""Name of the file in a run's folder that says what it started from."""


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
    return SavedRun(path).checkpoint().contents.step


def start(
    setup: Experiment, trainer: Trainer, workdir: Path, say: Callable[[str], None]
) -> None:
    """Fills a new trainer with what comes over from ``train.init_from``, if it is set.

    Raises:
      ConfigError: if model, features, tables or optimizers do not fit.
      CheckpointError, DataError: if the checkpoint, or a vocabulary, is damaged.
    """
    options = setup.config.train
    if options.init_from is None:
        return
    run = SavedRun(options.init_from)
    saved = run.checkpoint()
    keep = options.init_optimizer == "keep"
    _check_model(saved, setup, keep)
    kept = _row_counts(saved, _values(run, saved), setup, keep)
    trainer.whole_state()  # all rows of cached tables have values now
    filled = trainer.blank_state()
    trainer.restore(warm_state(saved, filled, trainer.embeddings, kept, keep))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(trainer.state.params))
    optimizers = f"its optimizers' state; steps go on at {trainer.step:,}"
    say(
        f"starts from {saved.folder}: {parameters:,} dense parameters, "
        + (optimizers if keep else "and new optimizers")
    )
    for table in setup.tables:
        count = kept.get(table.name, 0)
        what = f"{count:,} rows come over, {table.rows - count:,} are new"
        what = "the rows of all keys come over" if table.is_dynamic else what
        say(f"  table {table.name}: {what}")
    here = {table.name for table in setup.tables}
    for name in sorted(saved.contents.tables.keys() - here):
        say(f"  table {name}: is not in this model, no row comes over")
    if jax.process_index() == 0:
        begun = {"from": str(saved.folder), "first_step": trainer.step}
        write_json(workdir / FILE, {**begun, "kept_rows": kept})


def _values(run: SavedRun, saved: SavedCheckpoint) -> TableValues | None:
    """Returns what the rows of a run's tables stand for: its encoding says it, or the
    data that it was trained on, if they are still there."""
    encoding, data = run.folder / ENCODING, run.config.data
    if (encoding / manifests.FILE_NAME).exists():
        return TableValues(encoding, manifests.read(encoding))
    if not isinstance(data, PreparedConfig) or in_bucket(data.path):
        return None
    if data.path.exists():
        manifest = manifests.read(data.path)
        if manifest.digest() == saved.contents.identity["data"]["files"]:
            return TableValues(data.path, manifest)
    return None


def _row_counts(
    saved: SavedCheckpoint,
    before: TableValues | None,
    setup: Experiment,
    keep_optimizer: bool,
) -> dict[str, int]:
    """Returns how many rows of a checkpoint's tables are the first of a model's;
    nothing of dynamic tables, whose rows match by key.

    Raises:
      ConfigError: if rows or columns have another meaning here, or a table has fewer.
    """
    there: Mapping[str, Any] = saved.contents.identity["tables"]
    values, counts, problems = setup.description.values, {}, []
    if before is not None and values is not None:
        problems += before.changes(values, "in the run before")
    elif before is not values:
        known, unknown = ("those", "these") if values is None else ("these", "those")
        problems.append(
            f"nothing says which values the rows stand for in {unknown} data, but "
            f"vocabularies do in {known}"
        )
    for table in setup.tables:
        if table.name not in there:
            continue
        rows = there[table.name]["rows"]
        if table.is_dynamic and rows is None and keep_optimizer:
            continue  # all of its rows come over, by key
        if table.is_dynamic or rows is None:
            problems.append(
                f"table {table.name!r}: must be dynamic in both runs, which have one "
                "optimizer, or in neither"
            )
        elif rows > table.rows:
            problems.append(
                f"table {table.name!r}: has {rows:,} rows in the run before, "
                f"{table.rows:,} here, must have at least as many"
            )
        else:
            counts[table.name] = rows
    if problems:
        lines = "\n  ".join(["train.init_from: rows do not match:", *problems])
        raise ConfigError(
            f"{lines}\n`embark data prepare --extend` with the data of the run before "
            "lets values keep their rows"
        )
    return counts


def _check_model(
    saved: SavedCheckpoint, setup: Experiment, keep_optimizer: bool
) -> None:
    """Raises ``ConfigError`` unless a checkpoint's model is this one."""
    fields = (*WARM_START, *OPTIMIZERS) if keep_optimizer else WARM_START
    identities = saved.contents.identity, setup.identity
    both = set.intersection(*({*identity["tables"]} for identity in identities))
    there, here = (
        parts(
            {**identity, "tables": {n: identity["tables"][n] for n in sorted(both)}},
            fields,
        )
        for identity in identities
    )
    if lines := differences(there, here, "in the run before"):
        rule = "must agree in model, features, and the dims of tables"
        if keep_optimizer:
            rule += (
                ", and in optimizers, unless train.init_optimizer=new begins with new "
                "ones"
            )
        raise ConfigError(
            "\n  ".join([f"train.init_from: {saved.folder}:", *lines, rule])
        )
