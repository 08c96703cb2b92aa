"""How a process joins the others of its run, before it uses a device."""

from __future__ import annotations

import jax

from embark_jax._base.agreement import differences
from embark_jax._base.config import ConfigError
from embark_jax.config import ExperimentConfig
from embark_jax.launch.agreement import of_process_0
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
    own_config = config.model_dump(mode="json")
    if conflicts := differences(of_process_0(own_config), own_config, "for process 0"):
        raise ConfigError(
            "\n".join(["all processes must have one config:", *conflicts])
        )
