"""Reads ``commands.yaml``: bad input of commands, and what it does to their files."""

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from embark_jax.data.hashed_file import checksum_of
from tests.bad_input.case import JUNK, Case, write

CASES = Path(__file__).with_name("commands.yaml")
PART = "train/000-000000.arrow"


def read_cases() -> dict[str, list[Case]]:
    """The cases of each entrance."""
    return {
        entrance: list(_cases_of(**section))
        for entrance, section in yaml.safe_load(CASES.read_text("utf-8")).items()
    }


def _cases_of(
    call: str, cases: dict, file: str = "", says: str = "", leaves: str = ""
) -> Iterator[Case]:
    for given, how in cases.items():
        if isinstance(how, list):
            text, *expected = how
            act = {"write": text} if file else {"call": call.replace("{}", text)}
            how = {"says": expected, **act}
        expected = how.pop("says")
        expected = [expected] if isinstance(expected, str) else expected
        words = how.pop("call", None)
        if words is None:
            words, expected = call, [*filter(None, [says]), *expected]
        yield Case(given, words, tuple(expected), _damage(how, file), leaves)


def _damage(how: dict[str, Any], file: str) -> Callable[[], None] | None:
    """What becomes of the world, by the keys of a case."""
    path = how.pop("file", file)
    match how:
        case {"write": str(text)}:
            content = text.encode(how.get("encoding", "utf-8")).replace(b"JUNK", JUNK)
            return lambda: write(path, content)
        case {"write": texts}:
            return lambda: _write_all(texts)
        case {"cut": size}:
            return lambda: write(path, Path(path).read_bytes()[:size])
        case {"replace": (old, new)}:
            return lambda: _replace(path, old, new)
        case {"set": changes}:
            return lambda: _edit(path, changes)
        case {"drop": key}:
            return lambda: _edit(path, {key: None})
        case {"remove": name}:
            return lambda: _remove(Path(name))
        case {"damage": name}:
            return DAMAGES[name]
    assert not how, how
    return None


def _write_all(texts: dict[str, str]) -> None:
    for path, text in texts.items():
        write(path, text)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _replace(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert text.count(old) == 1
    write(path, text.replace(old, new))


def _edit(path: str, changes: dict[str, Any]) -> None:
    """Sets values of JSON by their dotted keys, and its checksum if it has one; None
    removes a key."""
    data = json.loads(Path(path).read_text())
    for key, value in changes.items():
        *sections, last = key.split(".")
        section = data
        for name in sections:
            section = section[int(name) if isinstance(section, list) else name]
        if value is None:
            del section[last]
        else:
            section[last] = value
    if "checksum" in data:
        data["checksum"] = checksum_of(data)
    write(path, json.dumps(data))


def _half_of_a_compressed_file() -> None:
    write("raw/a.csv.gz", gzip.compress(b"label,a\n" + b"1,2\n" * 99)[:-9])


DAMAGES: dict[str, Callable[[], None]] = {
    "half_of_a_compressed_file": _half_of_a_compressed_file,
}
