"""Runs of the ``embark`` command, in this process or in one of their own."""

import contextlib
import functools
import io
import json
import logging
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
import typer.main
from matplotlib.figure import Figure
from tensorboardX.proto.event_pb2 import Event

from embark_jax import cli
from embark_jax.launch.one_host import FAILED, USER_ERROR

OWN = Path(__file__).parent.parent / "experiments" / "own"
"""A folder with a model and data of a user's own, and a config."""
CONFIG = """\
name: tiny
data: {kind: synthetic, dense_features: 3, train_samples: 4096, test_samples: 1000}
model: {kind: dlrm, bottom: [8, 4], top: [8, 1]}
mesh: {nodes: 2, gpus_per_node: 4}
embedding:
  dim: 4
  tables:
    user: {rows: 1000, cluster: rb}
    item: {rows: 600, cluster: ub}
    city: {rows: 20, cluster: dp}
  features:
    user: {}
    items: {table: item, hotness: 4, pooling: mean}
    city: {}
train: {batch_size: 64, steps: 6, log_every: 1, checkpoint_every: 2}
"""
OF_SHARED = ("mesh.nodes=1", "mesh.gpus_per_node=2", "train.eval_every=2")
"""Overrides of the run that several files of tests look at."""


get_command = functools.cache(typer.main.get_command)
"""Of the parser of commands, which takes as long to make as a small command."""


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def embark(*args: str | Path, draws: bool = False) -> Outcome:
    """Runs the command in this process; only its eight devices are there.

    Args:
      args: its words, or a single text that is split into words as a shell does it.
      draws: whether pictures of pages are drawn, which takes half of a short run.
    """
    empty = mock.patch.object(Figure, "savefig")
    if len(args) == 1:
        args = tuple(shlex.split(str(args[0])))
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.nullcontext() if draws else empty,
        mock.patch.object(sys, "argv", ["embark", *map(str, args)]),
        mock.patch("typer.main.get_command", get_command),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def done(*args: str | Path, draws: bool = False) -> Outcome:
    """Runs the command, which must succeed and say nothing on stderr."""
    outcome = embark(*args, draws=draws)
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    return outcome


def start(*args: str | Path, **options) -> subprocess.Popen:
    """Starts the command in a process of its own."""
    command = [sys.executable, "-c", "from embark_jax.cli import main; main()"]
    return subprocess.Popen([*command, *map(str, args)], text=True, **options)


def shown_results(monkeypatch) -> dict:
    """What the command is going to show, once ``embark evaluate`` has run."""
    from embark_jax.report import display

    found: dict = {}
    monkeypatch.setattr(display, "show_result", lambda record, _: found.update(record))
    return found


def write_config(folder: Path, text: str = CONFIG) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(text)
    return path


def records(workdir: Path) -> list[dict]:
    """The lines of ``metrics.jsonl``, without a last one that is cut short."""
    lines = (workdir / "metrics.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def events(workdir: Path) -> Iterator[Event]:
    """All TensorBoard events, file by file: records of length, check, Event, check."""
    for path in sorted((workdir / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            yield Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def losses(workdir: Path) -> dict[int, float]:
    """The loss at each step; fails if one is there twice."""
    found = [
        (each["step"], each["loss"]) for each in records(workdir) if "loss" in each
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


def final(workdir: Path) -> dict:
    """The final record, which must be the last and the only one."""
    assert [i for i, each in enumerate(records(workdir), 1) if "final" in each] == [
        len(records(workdir))
    ]
    return records(workdir)[-1]


def snapshot(folder: Path) -> dict[Path, bytes]:
    """All files in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collects the names of the programs that JAX compiles, such as "jit(f)"."""
    names: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record):
            if found := re.match(
                r"Finished XLA compilation of (\S+)", record.getMessage()
            ):
                names.append(found[1])

    logger, collector = logging.getLogger("jax"), Collector()
    logger.addHandler(collector)
    propagate, logger.propagate = logger.propagate, False
    try:
        with jax.log_compiles():
            yield names
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagate


def end_by_sigterm(
    words: Sequence[str | Path], begun: Callable[[], bool], **environment: str
) -> None:
    """Ends a command as soon as it has begun."""
    run = "from embark_jax.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", run, *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as process:
        while not begun() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err


def assert_refused(outcome: Outcome, *expected: str) -> None:
    """One message, which has all that is expected in it, and no traceback."""
    assert outcome.code in (FAILED, USER_ERROR)
    assert outcome.err.startswith("error: ")
    assert len(re.findall("^error: ", outcome.err, re.MULTILINE)) == 1
    for text in expected:
        assert text in outcome.err
    assert "Traceback" not in outcome.err
