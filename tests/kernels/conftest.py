"""Fixtures for kernels in the interpreter."""

import threading

import jax
import pytest


@pytest.fixture
def compiled_once(monkeypatch):
    """The interpreter compiles a kernel once, not once for each warpgroup of each block
    of its grid."""
    from jax._src.pallas.mosaic.interpret import thread_map

    compiled, lock = {}, threading.Lock()

    def run_jaxpr(jaxpr, consts, *args):
        def run(consts, *args):
            jax.core.eval_jaxpr(jaxpr, consts, *args)

        with lock:
            if id(jaxpr) not in compiled:  # keeps it, so that no other has its id
                program = jax.jit(run).lower(consts, *args).compile()
                compiled[id(jaxpr)] = jaxpr, program
        compiled[id(jaxpr)][1](consts, *args)

    monkeypatch.setattr(thread_map, "_run_jaxpr", run_jaxpr)
