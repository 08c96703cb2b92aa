"""The secret that the processes of a run share, so that no stranger joins them."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from pathlib import Path

from embark_jax._base.config import ConfigError
from embark_jax._base.storage import in_bucket

VARIABLE = "EMBARK_TOKEN"
FILE = ".token"
"""Name of the file with the token, in the folder of the run."""
WAIT_S = 300
"""Time for process 0 to write the file, and for a shared file system to show it."""
MAKE_ONE = "`openssl rand -hex 32` makes one"
_LEAST_CHARACTERS = 16
_RETRY_S = 0.2
_PRIVATE = 0o077
"""The bits of a file's mode that let others than its owner at it."""


def shared_token(workdir: Path, process_id: int, wait_s: float = WAIT_S) -> bytes:
    """Returns the token of a run: of the environment, or else of a file in its folder.

    Process 0 makes the file, which only its owner can read, and the others wait for it.
    It stays there for the next start of the run.

    Args:
      workdir: folder of the run, which all processes see.
      process_id: number of this process.
      wait_s: seconds after which the file counts as missing.

    Raises:
      ConfigError: if the token is short, the file does not come, or others than its
        owner can read it.
      OSError: if the file cannot be written or read.
    """
    if (token := os.environ.get(VARIABLE)) is not None:
        return _checked(token, VARIABLE)
    if in_bucket(workdir):
        raise ConfigError(
            f"{workdir}: the run's token cannot be in a bucket, which others may read; "
            f"set {VARIABLE} to one secret for all processes ({MAKE_ONE})"
        )
    path = workdir / FILE
    if process_id == 0 and not path.exists():
        workdir.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=FILE, dir=workdir)  # of mode 0600
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex())
        os.replace(name, path)
    end = time.monotonic() + wait_s
    while not path.exists():
        if time.monotonic() > end:
            raise ConfigError(
                f"{path}: process 0 did not write the run's token within {wait_s} s; "
                f"if the processes do not share this folder, set {VARIABLE} to one "
                f"secret for all of them ({MAKE_ONE})"
            )
        time.sleep(_RETRY_S)
    mode = path.stat().st_mode & 0o777
    if mode & _PRIVATE:
        raise ConfigError(
            f"{path}: has mode {mode:o}, so that others can read the run's token; "
            f"delete it, or set {VARIABLE} ({MAKE_ONE})"
        )
    return _checked(path.read_text("utf-8", "replace"), str(path))


def _checked(text: str, source: str) -> bytes:
    token = text.strip()
    if len(token) < _LEAST_CHARACTERS:
        raise ConfigError(
            f"{source}: has {len(token)} characters, must have at least "
            f"{_LEAST_CHARACTERS}; {MAKE_ONE}"
        )
    return token.encode()
