"""Whether the GPU kernels have passed their check on this kind of GPU.

Verdicts lie in ``verdicts.json`` beside ``tuned.json``, by kind of device. Each holds
for the versions of JAX and of these kernels with which the check ran; with others, the
kernels count as unchecked.

The processes of one program must agree: ``use`` gives all of them what one has read.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import warnings
from collections.abc import Sequence
from pathlib import Path

from embark_kernels._cache import add_for_device, cache_file, read_for_device

FILE = "verdicts.json"
UNCHECKED = "the GPU kernels have not been checked on this kind of GPU"
REMEDY = "`embark bench kernels --check` does that, in about 3 minutes"
_reason_in_use: str | None = None


def why_not_checked() -> str:
    """Returns why the kernels are not trusted on this kind of device; "" if they have
    passed."""
    return _why_not_checked() if _reason_in_use is None else _reason_in_use


def use(reason: str | None) -> None:
    """Takes this reason from now on instead of the file's; None takes the file's."""
    global _reason_in_use
    _reason_in_use = reason


def keep_verdict(failed: Sequence[str]) -> None:
    """Keeps the outcome of a check on this machine's kind of device.

    Args:
      failed: the operations that failed; none means that the kernels have passed.
    """
    add_for_device(cache_file(FILE), {"failed": sorted(set(failed)), **versions()})


@functools.cache
def versions() -> dict[str, str]:
    """Returns the versions for which a verdict holds; that of the kernels is a digest
    of their source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return {
        **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib")},
        "embark_kernels": digest.hexdigest()[:12],
    }


def _why_not_checked() -> str:
    path = cache_file(FILE)
    verdict = read_for_device(path)
    if not verdict:
        return f"{UNCHECKED}; {REMEDY}"
    for name, version in versions().items():
        if verdict.get(name) != version:
            return (
                f"the GPU kernels were checked with {name} {verdict.get(name)}, not "
                f"with {version}; {REMEDY}"
            )
    failed = verdict.get("failed")
    if not isinstance(failed, list):
        warnings.warn(f"{path}: lacks 'failed'; ignored, delete it", stacklevel=2)
        return f"{UNCHECKED}; {REMEDY}"
    if failed:
        return "the GPU kernels failed their check on this kind of GPU: " + ", ".join(
            map(str, failed)
        )
    return ""
