"""What the processes of a run do together once JAX runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from embark_kernels import tuning, verdict
from jax.experimental import multihost_utils

from embark_jax._base.config import ConfigError, differences
from embark_jax.config import ExperimentConfig
from embark_jax.launch.process_group import listening_address
from embark_jax.launch.worker import WorkerOptions


def join(options: WorkerOptions, config: ExperimentConfig) -> None:
    """Joins this process to the others of the run, before it uses any device.

    On CPU, collectives go through Gloo; on GPUs, through NCCL.

    Raises:
      ConfigError: if the mesh does not span all devices of all processes.
    """
    devices, processes = config.mesh.devices, options.processes
    if devices % processes:
        raise ConfigError(
            f"mesh: has {devices} devices (mesh.nodes {config.mesh.nodes} × "
            f"mesh.gpus_per_node {config.mesh.gpus_per_node}), must be a multiple of "
            f"the {processes} processes"
        )
    if processes > 1:
        jax.config.update("jax_num_cpu_devices", devices // processes)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        host, _, port = options.coordinator.rpartition(":")
        address = listening_address(host.strip("[]"))
        jax.distributed.initialize(
            options.coordinator,
            processes,
            options.process_id,
            coordinator_bind_address=address and f"{address}:{port}",
        )
        if jax.device_count() != devices:
            raise ConfigError(
                f"mesh: has {devices} devices, the {processes} processes have "
                f"{jax.device_count()}: a mesh must span them all"
            )
        # Caches differ between hosts, but their programs must not.
        tuning.use(of_process_0(tuning.winners()))
        verdict.use(of_process_0(verdict.why_not_checked()))
    own_config = config.model_dump(mode="json")
    if conflicts := differences(of_process_0(own_config), own_config, "for process 0"):
        raise ConfigError(
            "\n".join(["all processes must have one config:", *conflicts])
        )


def of_process_0(value: Any) -> Any:
    """Returns, in all processes, the JSON-like value that process 0 gave."""
    if jax.process_count() == 1:
        return value
    encoded = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(encoded))))
    # Only the value of process 0 counts, but all must give as many bytes.
    text = multihost_utils.broadcast_one_to_all(np.resize(encoded, size))
    return json.loads(np.asarray(text).tobytes())


def total(counts: Mapping[str, int]) -> dict[str, int]:
    """Sums counts with the same names over all processes."""
    if jax.process_count() == 1:
        return dict(counts)
    with jax.enable_x64(True):
        own_counts = np.array(list(counts.values()), np.int64)
        all_counts = np.asarray(multihost_utils.process_allgather(own_counts))
    return dict(zip(counts, map(int, all_counts.sum(axis=0)), strict=True))
