"""Where an experiment writes its results: those that lie beside it are of all cases."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def output_of(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    committed: Path,
    free: Sequence[str] = (),
) -> Path:
    """Returns the path that --out names, or that of the committed results.

    Ends the script if another option is not as it was for these, so that a part of the
    cases, or another size, never takes their place.

    Args:
      parser, given: the options, with one named ``out``.
      committed: the committed results.
      free: options that change no result, such as a folder for temporary files.
    """
    changed = [
        name
        for name, value in vars(given).items()
        if name not in ("out", *free) and value != parser.get_default(name)
    ]
    if given.out is None and changed:
        option = changed[0].replace("_", "-")
        parser.error(f"--{option} gives other results than {committed}: name an --out")
    return given.out or committed
