"""Kernels for embedding tables on GPU and CPU, independent of embark_jax.

The public names are those of ``_api``, which is imported when one is first asked for:
it imports JAX, and whoever reads ``optimizers`` alone does without.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embark_kernels._api import *  # noqa: F403
else:

    def __getattr__(name: str):
        public = importlib.import_module("embark_kernels._api")
        if not hasattr(public, name):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(public, name)
        return value
