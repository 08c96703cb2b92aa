"""Freed memory is kept where steps run on the CPU, and only there."""

import ctypes
import platform
from pathlib import Path

import pytest

from embark_jax._base import devices
from embark_jax.cli import host_memory


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, int]]:
    """What the C library is asked for."""
    calls = []

    class Library:
        def mallopt(self, option, value):
            calls.append((option, value))

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.39"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    return calls


@pytest.mark.parametrize(
    ("platforms", "device", "kept"),
    [
        (None, None, True),
        (None, "nvidia0", False),
        (None, "kfd", False),
        (None, "nvidiactl", True),
        ("cpu", "nvidia0", True),
        ("cuda", None, False),
        ("cuda,cpu", None, False),
    ],
)
def test_where_it_is_kept(monkeypatch, tmp_path, calls, platforms, device, kept):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if platforms is not None:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    if device is not None:
        (tmp_path / device).touch()
    monkeypatch.setattr(devices, "DEVICES", Path(tmp_path))
    host_memory.keep_freed_memory()
    assert bool(calls) is kept
