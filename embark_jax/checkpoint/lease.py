"""Keeps a second writer out of a folder in a bucket, which has no locks.

The writer has an object there, and writes it anew every few seconds, each time on the
condition that nobody else did. If it stays as it is, its writer was killed.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable

import tensorstore as ts
from etils import epath

from embark_jax._base.storage import key_value_store, reached
from embark_jax.checkpoint.errors import CheckpointError

KEY = "writer.json"
RENEWED_S = 10.0
EXPIRES_S = 60.0
"""Seconds after which an object that was not renewed is that of a killed writer."""


class Lease:
    """The right to write into a folder of a bucket.

    Args:
      folder: the folder.
      say: gets a line if this waits.

    Raises:
      CheckpointError: if another program writes there.
      StorageError: if the bucket cannot be used.
    """

    def __init__(self, folder: epath.Path, say: Callable[[str], None]):
        self._folder, self._id = folder, secrets.token_hex(8)
        self._count = 0
        self._released, self._is_lost = threading.Event(), False
        with reached(folder):
            self._store = ts.KvStore.open(key_value_store(folder)).result()
            held = self._store.read(KEY).result()
            self._generation = held.stamp.generation
            if held.state == "value":
                say(f"{folder}: waits up to {EXPIRES_S:.0f} s: has a run died here?")
                self._wait_for_expiry()
            self._renew()
        self.check()
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def check(self) -> None:
        """Raises ``CheckpointError`` if another program has the lease."""
        if self._is_lost:
            raise CheckpointError(
                f"{self._folder}: another run writes its checkpoints here; stop it, or "
                "use another --workdir"
            )

    def release(self) -> None:
        """Gives the right up; if the bucket cannot be reached, it expires."""
        self._released.set()
        with contextlib.suppress(Exception):
            self._store.write(KEY, None, if_equal=self._generation).result()

    def _wait_for_expiry(self) -> None:
        end = time.monotonic() + EXPIRES_S
        while time.monotonic() < end and not self._is_lost:
            time.sleep(min(1, RENEWED_S))
            stamp = self._store.read(KEY).result().stamp
            self._is_lost = stamp.generation != self._generation
        self.check()

    def _renew(self) -> None:
        self._count += 1
        writer = {
            "id": self._id,
            "count": self._count,
            "host": socket.gethostname(),
        }
        text = json.dumps(writer)
        stamp = self._store.write(KEY, text, if_equal=self._generation).result()
        if not stamp.generation:  # or it was written, and the answer did not come
            held = self._store.read(KEY).result()
            stamp, self._is_lost = held.stamp, self._id.encode() not in held.value
        self._generation = stamp.generation

    def _keep(self) -> None:
        while not self._released.wait(RENEWED_S) and not self._is_lost:
            with contextlib.suppress(Exception):  # the next one may reach the bucket
                self._renew()
