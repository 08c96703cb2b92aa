"""Data: raw files of ``embark data prepare``, and the folders that it makes."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from embark_jax.data.manifest import checksum_of
from tests.bad_input.case import JUNK, SAMPLES, Case, cutting, editing, writing

CLICKS, PART = "raw/clicks.csv", "prepared/train/000-000000.npy"


def _raw(given: str, content: str | bytes, *says: str, options: str = "") -> Case:
    command = f"embark data prepare csv --raw {CLICKS} --out new {options}".rstrip()
    return Case(given, command, says, writing(CLICKS, content), leaves="new")


def _prepare(given: str, words: str, *says: str, damage: Any = None) -> Case:
    return Case(given, f"embark data prepare {words}", says, damage, leaves="new")


RAW = [
    _prepare(
        "a folder that is not there",
        "csv --raw nope --out new",
        "nope: no such file; --raw is such a file, or a folder of such files",
    ),
    _prepare(
        "a file of another kind",
        "csv --raw tiny.yaml --out new",
        "tiny.yaml: is no *.csv or *.csv.gz or *.tsv or *.tsv.gz; --raw is such a file",
    ),
    _prepare(
        "a folder without such files",
        "parquet --raw raw --out new",
        "raw: has no *.parquet",
    ),
    _prepare(
        "a file where a folder is needed",
        f"avazu --raw {CLICKS} --out new",
        "raw/clicks.csv: is a file; --raw is the folder of the downloaded files",
    ),
    _prepare(
        "the folder of another data set",
        "criteo-kaggle --raw raw --out new",
        "raw: has no train.txt, plain or with .gz",
    ),
    _prepare(
        "an unknown data set",
        "criteo --raw raw --out new",
        "dataset is 'criteo'; did you mean criteo-1tb?",
    ),
    _prepare(
        "a day of Criteo's that is missing",
        "criteo-1tb --raw raw --out new",
        "must have day_0, day_1 and so on",
        damage=lambda: (writing("raw/day_0", "")(), writing("raw/day_2", "")()),
    ),
    _raw("nothing", "", "line 1: is empty, must name the columns"),
    _raw("only a header", "label,shop\n", "raw/clicks.csv: has no samples"),
    _raw("no column of that name", "click,shop\n1,a\n", "has no column 'label'"),
    _raw("no column but the label", "label\n1\n", "no column is left for features"),
    _raw(
        "a column twice",
        "label,a,a\n1,2,3\n",
        "raw/clicks.csv: columns a are used twice",
    ),
    _raw(
        "bytes that are no text",
        JUNK + b"\n" + JUNK,
        "raw/clicks.csv, line 1: is '\\x80\\x81",
        "not UTF-8 text; must name the columns",
    ),
    _raw("UTF-16", "label,a\n1,2\n".encode("utf-16"), "is UTF-16 text, must be UTF-8"),
    _raw(
        "junk in the middle",
        b"label,a\n1,2\n" + JUNK + b"\n0,3\n",
        "raw/clicks.csv, line 3: ",
    ),
    _raw(
        "a label of 5",
        "label,a\n1,2\n5,2\n",
        "line 3: column label: value is 5.0, must be a finite number from 0 to 1",
    ),
    _raw(
        "a label in words",
        "label,a\n1,2\nTrue,2\n",
        "value is 'True', must be a finite number from 0 to 1; write 1 for true and 0",
    ),
    _raw("no label", "label,a\n1,2\n,2\n", "line 3: column label: is empty, must be"),
    _raw("a column too many", "label,a\n1,2\n1,2,3\n", "line 3: has 3 columns, must"),
    _raw("no newline at the end", "label,a\n1,2", "line 2: the file ends inside this"),
    _raw(
        "an infinite number",
        "label,a,p\n1,2,3\n1,2,inf\n",
        "line 3: column p: value is inf, must be a finite number",
        options="--dense p",
    ),
    _raw(
        "text in a column of numbers",
        "label,a,p\n1,2,3\n1,2,cheap\n",
        "line 3: column p: value is 'cheap', must be a finite number",
        options="--dense p",
    ),
    _prepare(
        "half of a compressed file",
        "csv --raw raw/a.csv.gz --out new",
        "the compressed data are cut or damaged",
        damage=lambda: writing(
            "raw/a.csv.gz", gzip.compress(b"label,a\n" + b"1,2\n" * 99)[:-9]
        )(),
    ),
    _prepare(
        "a Parquet file that is none",
        "parquet --raw raw/a.parquet --out new",
        "raw/a.parquet: Parquet magic bytes not found",
        damage=writing("raw/a.parquet", JUNK),
    ),
    _prepare(
        "files with different columns",
        "csv --raw raw --out new",
        "raw/more.csv, line 1: header is ['label', 'b'], must be",
        damage=writing("raw/more.csv", "label,b\n1,2\n"),
    ),
    _prepare(
        "a folder that holds something else",
        "csv --raw raw --out run",
        "run: holds other files; take another --out",
    ),
    _prepare(
        "a folder made with other options",
        "csv --raw raw --out prepared --dense price --split random --min-count 2",
        "prepared: was made with other options (min_count)",
    ),
    _prepare(
        "a value that is no count",
        "csv --raw raw --out new --min-count 0",
        "Invalid value for '--min-count'",
    ),
]


def _prepared(given: str, damage: Callable[[], Any] | None, *says: str) -> Case:
    return Case(given, "embark train prepared.yaml --workdir new", says, damage)


def _manifest(given: str, change: Callable[[Any], Any], *says: str) -> Case:
    def changed(manifest):
        change(manifest)
        manifest["checksum"] = checksum_of(manifest)

    return _prepared(given, editing("prepared/manifest.json", changed), *says)


def _other_columns() -> None:
    """A file with other columns, which the manifest says to be right."""
    np.save(PART, np.zeros(SAMPLES, [("label", "<f4")]))

    def known(manifest):
        manifest["parts"]["train"][0].update(bytes=Path(PART).stat().st_size)
        manifest["checksum"] = checksum_of(manifest)

    editing("prepared/manifest.json", known)()


PREPARED = [
    _prepared(
        "a folder that is not there",
        lambda: shutil.rmtree("prepared"),
        "prepared: no such folder, seen from the working directory; `embark data prep",
    ),
    _prepared(
        "half a manifest",
        cutting("prepared/manifest.json", 100),
        "prepared/manifest.json: the file: Invalid JSON",
    ),
    _manifest(
        "a manifest of another version", lambda m: m.update(version=9), "version"
    ),
    _manifest("an unknown key", lambda m: m.update(colour=1), "manifest.json: colour"),
    _manifest(
        "a table of no rows",
        lambda m: m["table_rows"].update(shop=0),
        "manifest.json: table_rows.shop",
    ),
    _prepared(
        "a file that is gone",
        lambda: Path(PART).unlink(),
        f"{PART}: is missing, must have",
        "prepare the data again",
    ),
    _prepared("half a file", cutting(PART, 100), f"{PART}: has 100 bytes, must have"),
    Case(
        "a file with other columns",
        "embark data stats prepared",
        ("manifest.json: the file: train/000-000000.npy", "do not fill"),
        _other_columns,
    ),
    _manifest(
        "no training samples",
        lambda m: m["parts"].update(train=[]),
        "prepared: has no training samples",
    ),
    Case(
        "a table of the config that is not in the data",
        "embark train prepared.yaml embedding.tables.shops.dim=4",
        ("embedding.tables.shops: the dataset has none of that name; did you mean",),
    ),
    Case(
        "a table of the config with fewer rows than the data need",
        "embark train prepared.yaml embedding.tables.shop.rows=3",
        ("embedding.tables.shop.rows: is 3, the data need",),
    ),
    Case(
        "a batch larger than the data",
        "embark train prepared.yaml train.batch_size=128",
        ("train.batch_size is 128, more than the", "training samples"),
    ),
    Case(
        "overrides of a folder",
        "embark data stats prepared train.steps=3",
        ("a folder of prepared data takes no KEY=VALUE",),
    ),
]

ENTRANCES = {"raw files of data prepare": RAW, "prepared folders": PREPARED}
