"""Fetches public data sets, and checks each by its SHA-256."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from embark_jax._base.bucket_copy import cache_folder
from embark_jax._base.object_store import local
from embark_jax.data.batch import DataError

# This wheel contains the whole of MovieLens-100k as an example.
_REQUIREMENT = "recbole==1.2.1"
_WHEEL_NAME = "recbole-1.2.1-py3-none-any.whl"
_WHEEL_FOLDER = "recbole/dataset_example/ml-100k"
_FILE_SHA256 = {
    "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
    "ml-100k.user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
    "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
}


def movielens_100k_folder() -> Path:
    """Returns the folder of MovieLens-100k: ``$EMBARK_DATA/ml-100k``, by default under
    ``~/.cache/embark_jax``."""
    return cache_folder() / "ml-100k"


def fetch_movielens_100k(destination: Path | None = None) -> Path:
    """Puts the three files of MovieLens-100k into a folder, if they are not there.

    pip downloads a wheel (2 MB) that has them, from the package index that it is set up
    for; without a network ``PIP_FIND_LINKS`` names the folder of one.

    Args:
      destination: the folder; ``None`` is ``movielens_100k_folder()``.

    Returns:
      The folder.

    Raises:
      DataError: if the wheel cannot be fetched, or a file in it has another SHA-256
        than the known one.
    """
    destination = local(destination or movielens_100k_folder())
    if all(_sha256(destination / name) == sha for name, sha in _FILE_SHA256.items()):
        return destination
    destination.mkdir(parents=True, exist_ok=True)
    # The same file system, so that each file appears whole or not at all.
    with tempfile.TemporaryDirectory(dir=destination, prefix=".fetch-") as scratch:
        wheel = _download(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            for name, sha in _FILE_SHA256.items():
                unpacked = Path(scratch, name)
                unpacked.write_bytes(archive.read(f"{_WHEEL_FOLDER}/{name}"))
                if (digest := _sha256(unpacked)) != sha:
                    raise DataError(
                        f"{wheel.name}: SHA-256 of {name} is {digest}, must be {sha}"
                    )
                unpacked.replace(destination / name)
    return destination


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", _REQUIREMENT, "--no-deps"]
    # A source distribution would run code.
    command += ["--only-binary=:all:", "--dest", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise DataError(
            f"{' '.join(command)} failed: {result.stderr.strip()}; on a machine that "
            f"reaches a package index, run `pip download --no-deps {_REQUIREMENT}`, "
            "bring the file here, and set PIP_FIND_LINKS to its folder"
        )
    return folder / _WHEEL_NAME


def _sha256(path: Path) -> str | None:
    """Returns the SHA-256 in hexadecimal; None if there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
