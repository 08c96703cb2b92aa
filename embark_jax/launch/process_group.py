"""Finds out which process of a run this is, and where the processes meet."""

from __future__ import annotations

import dataclasses
import ipaddress
import socket

from embark_jax._base.config import ConfigError

LOOPBACK = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, as one of them sees it.

    Attributes:
      host, port: where the supervisors meet, on the machine of process 0.
      processes: number of processes.
      process_id: number of this process, from 0.

    Raises:
      ConfigError: if a number is out of range.
    """

    host: str
    port: int
    processes: int
    process_id: int

    def __post_init__(self):
        problems = []
        if not 0 < self.port < 2**16:
            problems.append(f"--coordinator: port is {self.port}, must be 1 to 65535")
        if self.processes < 1:
            problems.append(f"--processes: is {self.processes}, must be at least 1")
        elif not 0 <= self.process_id < self.processes:
            problems.append(
                f"--process-id: is {self.process_id}, must be 0 to "
                f"{self.processes - 1} (--processes {self.processes})"
            )
        if problems:
            raise ConfigError("\n".join(problems))


def find_process_group(
    coordinator: str | None, processes: int | None, process_id: int | None
) -> ProcessGroup:
    """Returns the group that was given, or that JAX finds by Slurm, Kubernetes or MPI.
    A single process meets nobody, and so stays on its own machine.

    Args:
      coordinator: HOST:PORT on the machine of process 0.
      processes: number of processes.
      process_id: number of this process.

    Raises:
      ConfigError: if a value is neither given nor found, or is not valid.
    """
    if None in (coordinator, processes, process_id):
        # JAX has no public name for what jax.distributed.initialize() does first.
        from jax._src.clusters import ClusterEnv

        coordinator, processes, process_id, _ = (
            ClusterEnv.auto_detect_unset_distributed_params(
                coordinator, processes, process_id, None, None, None
            )
        )
    if coordinator is None or processes is None or process_id is None:
        options = {
            "--coordinator": coordinator,
            "--processes": processes,
            "--process-id": process_id,
        }
        missing = [option for option, value in options.items() if value is None]
        raise ConfigError(
            f"{', '.join(missing)}: not given, and no cluster that JAX knows (Slurm, "
            "Kubernetes, MPI) was found"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--coordinator: is {coordinator!r}, must be HOST:PORT")
    host = LOOPBACK if processes == 1 else host.strip("[]")
    return ProcessGroup(host, int(port), processes, process_id)


def this_process_alone() -> ProcessGroup:
    """Returns a group of one process, on this machine."""
    return ProcessGroup(LOOPBACK, free_port(), processes=1, process_id=0)


def listening_address(host: str) -> str | None:
    """Returns where process 0 listens whose name is ``host``: this machine alone if
    the name is a loopback address, otherwise None, all networks.

    Other names are not looked up: a machine's own name often stands for a loopback
    address on that machine, and for another one elsewhere.
    """
    if host == "localhost":
        return LOOPBACK
    try:
        return host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:  # it is a name
        return None


def free_port() -> int:
    """Returns a port that nothing used a moment ago."""
    with socket.socket() as unused:
        unused.bind(("", 0))
        return unused.getsockname()[1]
