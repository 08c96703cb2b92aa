"""embark train by Ray Train, which starts all workers again when one fails.

What:     trains a config with one worker a host.
Run:      python docs/launch/ray_train.py CONFIG /shared/runs/a --workers 2
          --gpus 8 mesh.nodes=2 mesh.gpus_per_node=8
Needs:    pip install 'ray[train]'; a folder that all hosts see.
Source:   https://docs.ray.io/en/latest/train/getting-started-jax.html
"""

import argparse
from pathlib import Path

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.jax import JaxConfig, JaxTrainer


def work(arguments: dict) -> None:
    """Trains in one worker, after Ray has initialized jax.distributed."""
    import jax
    from rich.console import Console

    from embark_jax.config import reading
    from embark_jax.launch import processes
    from embark_jax.run import training

    config = reading.load(arguments["config"], arguments["overrides"])
    processes.join(config)
    console = Console(quiet=jax.process_index() != 0)
    training.train(config, arguments["workdir"], resume=True, console=console)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=lambda text: Path(text).resolve())
    parser.add_argument("workdir", type=lambda text: Path(text).resolve())
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=0, help="of a worker; 0: CPU")
    parser.add_argument("--restarts", type=int, default=3)
    arguments = vars(parser.parse_intermixed_args())
    workers, gpus = arguments.pop("workers"), arguments.pop("gpus")
    failures = FailureConfig(max_failures=arguments.pop("restarts"))
    resources = {"GPU": gpus} if gpus else {"CPU": 1}
    JaxTrainer(
        work,
        train_loop_config=arguments,
        jax_config=JaxConfig(use_gpu=True),  # on CPU, too: JAX_PLATFORMS=cpu
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=gpus > 0, resources_per_worker=resources
        ),
        run_config=RunConfig(
            storage_path=str(arguments["workdir"] / "ray"), failure_config=failures
        ),
    ).fit()


if __name__ == "__main__":
    main()
