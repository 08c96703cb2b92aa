"""A chain of exports in one folder: a whole one, and changes that follow each other.

Each subfolder is an export. ``model.json`` of one with changes names the one before it
by the SHA-256 of its ``model.json``, which lists the SHA-256 of all other files: so a
reader knows that it has every link, each as it was written.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import NamedTuple

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.files import sha256_of
from embark_jax.data import TableValues
from embark_jax.data.prepare.raw_rows import FOLDER as ENCODING
from embark_jax.data.prepare.raw_rows import read_encoding
from embark_jax.export.description import (
    FILE_NAME,
    MEND,
    Description,
    ExportError,
    parse_description,
    read_description,
)
from embark_jax.export.lookup import LookupTable, read_table


class Link(NamedTuple):
    """An export of a chain.

    Attributes:
      folder: its folder.
      description: what its ``model.json`` says.
      digest: SHA-256 of that file.
    """

    folder: Path
    description: Description
    digest: str


@dataclasses.dataclass(frozen=True)
class Chain:
    """The exports of a chain, in their order.

    Attributes:
      folder: folder of the chain.
      links: the exports, the whole one first.
    """

    folder: Path
    links: tuple[Link, ...]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Chain:
        """Reads the ``model.json`` of every export in a folder, and finds their order.
        An export that is being written has none yet.

        Raises:
          DataError: if a ``model.json`` is damaged.
          ExportError: if there is no whole export, or several, or one follows an export
            that is not there, or that another follows, too.
        """
        files = local_copy(folder)
        links = [
            Link(path.parent, parse_description(path.parent), sha256_of(path))
            for path in sorted(files.glob(f"*/{FILE_NAME}"))
        ]
        whole = [link for link in links if link.description.since is None]
        if len(whole) != 1:
            names = ", ".join(link.folder.name for link in whole) or "none"
            raise ExportError(
                f"{folder}: must have one whole export, which changes follow, has "
                f"{names}; {MEND}"
            )
        following: dict[str | None, Link] = {}
        for link in links:
            if link is whole[0]:
                continue
            parent = link.description.parent
            if other := following.get(parent):
                raise ExportError(
                    f"{link.folder}: follows the same export as {other.folder}; only "
                    "one process may add to a chain: delete one of them, and all that "
                    "follow it"
                )
            following[parent] = link
        ordered = whole
        while link := following.pop(ordered[-1].digest, None):
            ordered.append(link)
        if following:
            parent, link = next(iter(following.items()))
            raise ExportError(
                f"{link.folder}: follows an export with the SHA-256 {parent}, which is "
                f"not among those that follow {ordered[0].folder.name}: it is missing, "
                f"or was altered; {MEND}"
            )
        return cls(files, tuple(ordered))

    @property
    def last(self) -> Link:
        """Returns the export that nothing follows."""
        return self.links[-1]

    def after(self, digest: str | None) -> tuple[Link, ...]:
        """Returns the links after the one of a digest.

        Raises:
          ExportError: if it is not in the chain.
        """
        digests = [link.digest for link in self.links]
        if digest not in digests:
            raise ExportError(
                f"{self.folder}: no longer has the export with the SHA-256 {digest}, "
                "which the model is of; load the model anew"
            )
        return self.links[digests.index(digest) + 1 :]

    def verify(self) -> None:
        """Raises ``DataError`` if a file of an export is not as it was written."""
        for link in self.links:
            read_description(link.folder)

    def table(self, name: str) -> LookupTable:
        """Returns all rows of a table, after all changes."""
        first, *others = self.links
        rows = read_table(first.folder, first.description, name)
        for link in others:
            changes = read_table(link.folder, link.description, name)
            rows.update(changes, link.description.tables[name].rows)
        return rows

    def encoding(self) -> TableValues | None:
        """Returns the newest encoding; None if the data were not a user's own files."""
        if not self.encoded:
            return None
        *earlier, last = [folder / ENCODING for folder in self.encoded]
        return TableValues(last, read_encoding(last), tuple(earlier))

    @property
    def encoded(self) -> list[Path]:
        """Returns the exports with an encoding: the first, and those that add to it."""
        folders = [link.folder for link in self.links]
        return [folder for folder in folders if (folder / ENCODING).is_dir()]


def is_chain(folder: Path) -> bool:
    """Whether a folder has exports in subfolders, and is none itself."""
    return not (folder / FILE_NAME).exists() and any(folder.glob(f"*/{FILE_NAME}"))
