"""Kills processes of a run at random moments, and compares how each run ends.

See README.md beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.launch.process_group import free_port
from embark_jax.run import experiment

HERE = Path(__file__).parent
CONFIG = HERE / "config.yaml"
PORT = 7777
NAMES = Path("/etc/netns")
"""Where `ip netns exec` takes a namespace's own files of /etc from."""
RUN_TIMEOUT_S = 900
"""Generous, as other programs may use the machine."""


class Hosts:
    """Where the processes run: on this host, or each in a network namespace.

    Namespaces have interfaces and addresses of their own, as hosts have; a bridge
    connects them.
    """

    def __init__(self, processes: int, namespaces: bool):
        self.processes = processes
        self._namespaces = namespaces

    def __enter__(self) -> Hosts:
        if self._namespaces:
            ip("link add embark-br type bridge")
            ip("link set embark-br up")
            for i in range(self.processes):
                ip(f"netns add embark{i}")
                ip(f"link add embark-v{i} type veth peer name eth0 netns embark{i}")
                ip(f"link set embark-v{i} master embark-br up")
                ip(f"-n embark{i} address add 10.77.0.{i + 1}/24 dev eth0")
                ip(f"-n embark{i} link set eth0 up")
                ip(f"-n embark{i} link set lo up")
                # Gloo listens where the host's own name leads.
                own = NAMES / f"embark{i}"
                own.mkdir(parents=True)
                (own / "hosts").write_text(
                    f"127.0.0.1 localhost\n10.77.0.{i + 1} {socket.gethostname()}\n"
                )
        return self

    def __exit__(self, *_) -> None:
        if self._namespaces:
            for i in range(self.processes):
                ip(f"netns delete embark{i}")
                shutil.rmtree(NAMES / f"embark{i}")
            ip("link delete embark-br")

    def coordinator(self) -> str:
        return f"10.77.0.1:{PORT}" if self._namespaces else f"localhost:{free_port()}"

    def prefix(self, i: int) -> list[str]:
        return f"ip netns exec embark{i}".split() if self._namespaces else []


def ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


def train_command(workdir: Path, devices: int) -> list[str]:
    command = [sys.executable, "-c", "from embark_jax.cli import main; main()"]
    command += ["train", str(CONFIG), f"mesh.nodes={devices}"]
    return [*command, "--workdir", str(workdir), "--resume"]


def environment(cache: Path) -> dict[str, str]:
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def losses(workdir: Path) -> dict[int, float]:
    """Those that are logged, by step; a last line that is cut short is left out."""
    with contextlib.suppress(FileNotFoundError):
        lines = (workdir / "metrics.jsonl").read_text().split("\n")[:-1]
        records = map(json.loads, lines)
        return {each["step"]: each["loss"] for each in records if "loss" in each}
    return {}


def result(workdir: Path, expected: dict[int, float]) -> dict[str, float]:
    """How a run ended, and how far its losses are from those of another."""
    record = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    assert record.get("final"), f"{workdir}: has not ended"
    found = losses(workdir)
    assert found.keys() == expected.keys()
    return {
        "test_auc": record["test_auc"],
        "test_log_loss": record["test_log_loss"],
        "largest_loss_difference": max(
            abs(found[step] / expected[step] - 1) for step in found
        ),
    }


class Run:
    """The supervisors of one run."""

    def __init__(self, hosts: Hosts, workdir: Path, cache: Path, restarts: int):
        self.workdir = workdir
        workdir.mkdir()
        coordinator = hosts.coordinator()
        command = train_command(workdir, hosts.processes)
        command += ["--max-restarts", str(restarts), "--distributed"]
        command += ["--coordinator", coordinator, "--processes", str(hosts.processes)]
        self.processes = [
            subprocess.Popen(
                [*hosts.prefix(i), *command, "--process-id", str(i)],
                env=environment(cache),
                stdout=self.log(i).open("w"),
                stderr=subprocess.STDOUT,
            )
            for i in range(hosts.processes)
        ]

    def log(self, i: int) -> Path:
        return self.workdir / f"process-{i}.log"

    def workers(self) -> list[int | None]:
        """The process that trains, of each supervisor; None where there is none."""
        return [child_of(process.pid) for process in self.processes]

    def finish(self) -> list[int]:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        try:
            return [p.wait(deadline - time.monotonic()) for p in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    def finish_well(self) -> None:
        statuses = self.finish()
        assert statuses == [0] * len(statuses), self.log(0).read_text()


def child_of(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None
    return None


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][1] != "Z"
    return False


def seconds_until(condition) -> float:
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > RUN_TIMEOUT_S:
            raise TimeoutError
        time.sleep(0.005)
    return time.monotonic() - start


def kill(run: Run, victim: int, moment_s: float) -> dict | None:
    """Kills a process that trains; None if the run has ended before the moment."""
    seconds_until(lambda: None not in run.workers())
    time.sleep(moment_s)
    workers = run.workers()
    if None in workers or any(p.poll() is not None for p in run.processes):
        return None
    step = max(losses(run.workdir), default=0)
    os.kill(workers[victim], signal.SIGKILL)
    ended_s = seconds_until(lambda: not any(map(alive, workers)))
    statuses = run.finish()
    reason = f"process {victim} was killed by SIGKILL"
    return {
        "victim": victim,
        "moment_s": round(moment_s, 2),
        "step": step,
        "all_ended_s": round(ended_s, 3),
        "statuses": statuses,
        "reason_in_logs": [
            reason in run.log(i).read_text() for i in range(len(run.processes))
        ],
    }


class Loader:
    """Loads checkpoints, on one device whatever they were written on."""

    def __init__(self):
        config = reading.load(CONFIG, ["mesh.nodes=1"])
        self._setup = experiment.build(config)
        self._trainer = self._setup.trainer()

    def load_all(self, folder: Path) -> list[int]:
        """The steps of all complete checkpoints; raises if one cannot be loaded."""
        with Checkpointer(folder, self._setup.identity, keep=None) as checkpoints:
            for step in checkpoints.steps:
                state, _ = checkpoints.restore(
                    self._trainer.state, self._trainer.embeddings, step
                )
                self._trainer.restore(state)
                assert self._trainer.step == step
            return checkpoints.steps


def trials(hosts: Hosts, kills: int, folder: Path, seed: int) -> Iterator[dict]:
    """One process with as many devices; the undisturbed run; then one for each kill."""
    loader, rng, cache = Loader(), random.Random(seed), folder / "compiled"
    alone = folder / "alone"
    subprocess.run(
        train_command(alone, hosts.processes), env=environment(cache), check=True
    )
    yield {"one_process": result(alone, losses(alone))}

    Run(hosts, folder / "compiling", cache, 0).finish_well()
    run = Run(hosts, folder / "undisturbed", cache, 0)
    seconds_until(lambda: None not in run.workers())
    start = time.monotonic()
    run.finish_well()
    whole_s = time.monotonic() - start
    expected = losses(run.workdir)
    yield {
        "undisturbed": {
            "seconds": round(whole_s, 2),
            **result(run.workdir, losses(alone)),
        }
    }
    done = 0
    for attempt in range(10 * kills):
        run = Run(hosts, folder / f"kill-{attempt}", cache, 1)
        record = kill(run, done % hosts.processes, rng.uniform(0, whole_s))
        if record is None:
            run.finish_well()
            continue
        record |= result(run.workdir, expected)
        record["loaded"] = len(loader.load_all(run.workdir / "checkpoints"))
        yield {"kill": record}
        done += 1
        if done == kills:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--namespaces", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    kills: list[dict] = []
    record = {"processes": options.processes, "namespaces": options.namespaces}
    with (
        tempfile.TemporaryDirectory() as folder,
        Hosts(options.processes, options.namespaces) as hosts,
    ):
        for found in trials(hosts, options.kills, Path(folder), options.seed):
            print(json.dumps(found), flush=True)
            if "kill" in found:
                kills.append(found["kill"])
            else:
                record |= found
            text = json.dumps({**record, "kills": kills}, indent=1)
            options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
