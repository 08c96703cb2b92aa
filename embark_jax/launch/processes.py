"""How a process joins the others of its run, and ends them when it fails."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Callable, Iterator

import jax

from embark_jax._base.agreement import differences
from embark_jax._base.config import ConfigError
from embark_jax._base.errors import UserError
from embark_jax.config import ExperimentConfig
from embark_jax.launch.agreement import from_process_0, processes_of_run
from embark_jax.launch.one_host import LOST, exit_status

HEARTBEAT_S = 30
"""A process that is silent for this long is lost, and the others end."""


LINK = re.compile("gloo|nccl|coordination.service", re.IGNORECASE)
"""What carries collectives between processes, and is named in its errors."""


class LostError(UserError):
    """A collective that failed, as another process of the run has ended."""


class SharedError(ConfigError):
    """An error that all processes of a run have alike: the first one tells it."""


def join(
    config: ExperimentConfig,
    coordinator: str | None = None,
    processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Joins this process to the others of the run, before it uses any device.

    What is None is found by JAX, from Slurm, Kubernetes or Open MPI. A process that
    another program has joined, such as Ray, stays as it is. On CPU, collectives go
    through Gloo; on GPUs, through NCCL.

    Args:
      config: of the run, the same for all processes.
      coordinator: HOST:PORT on the machine of process 0.
      processes: number of processes.
      process_id: number of this process, from 0.

    Raises:
      ConfigError: if the processes cannot be found, have different configs, or the
        mesh does not span all of their devices.
    """
    try:
        if not jax.distributed.is_initialized():
            jax.distributed.initialize(
                coordinator,
                processes,
                process_id,
                coordinator_bind_address=_bind_address(coordinator),
                heartbeat_timeout_seconds=HEARTBEAT_S,
            )
    except (ValueError, IndexError) as error:  # IndexError: no port
        raise ConfigError(
            f"--coordinator {coordinator}, --processes {processes}, --process-id "
            f"{process_id}: {error}; must be HOST:PORT and two numbers, or Slurm, "
            "Kubernetes or Open MPI must have started this process"
        ) from error
    make_host_devices(config.mesh.devices)
    if jax.device_count() != config.mesh.devices:
        raise SharedError(
            f"mesh: has {config.mesh.devices} devices (mesh.nodes {config.mesh.nodes} "
            f"× mesh.gpus_per_node {config.mesh.gpus_per_node}), the "
            f"{jax.process_count()} processes have {jax.device_count()}: a mesh must "
            "span them all, as mesh.nodes=1 mesh.gpus_per_node="
            f"{jax.device_count()} does"
        )
    own = config.model_dump(mode="json")
    if conflicts := differences(from_process_0(own), own, "for process 0"):
        raise ConfigError(
            "\n".join(["all processes must have one config:", *conflicts])
        )


def make_host_devices(devices: int) -> None:
    """Makes this process's share of a mesh of CPU devices. Other platforms stay as they
    are, and so does a process that has used JAX already."""
    if devices > 1:
        share = max(1, devices // processes_of_run())
        with contextlib.suppress(RuntimeError):  # JAX was used already
            jax.config.update("jax_num_cpu_devices", share)


@contextlib.contextmanager
def ending_at_once(show: Callable[[Exception], None]) -> Iterator[None]:
    """Ends the process at once at an exception: an orderly exit would wait for the
    other processes, which may wait for this one in a collective.

    Args:
      show: shows an exception to the user.
    """
    try:
        yield
    except Exception as error:
        status = exit_status(error)
        if isinstance(error, jax.errors.JaxRuntimeError) and LINK.search(str(error)):
            first, *_ = str(error).splitlines()
            error, status = LostError(f"another process is gone: {first}"), LOST
        if not (isinstance(error, SharedError) and jax.process_index()):
            show(error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _bind_address(coordinator: str | None) -> str | None:
    """Where process 0 listens: on this machine alone if the coordinator's name is a
    loopback address, else None, on all networks. JAX's service knows no secret."""
    host = (coordinator or "").rpartition(":")[0]
    with contextlib.suppress(ValueError):  # it is a name
        if host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback:
            return coordinator
    return None
