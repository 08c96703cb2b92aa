"""What runs leave behind, where they leave it, and the options of commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.bad_input.case import JUNK, Case, samples, writing

METRICS = "run/metrics.jsonl"

WORKDIRS = [
    Case(
        "a folder that holds a run",
        "embark train tiny.yaml --workdir run",
        ("run already holds a run (config.yaml): pass --resume",),
    ),
    Case(
        "a file for a folder",
        "embark train tiny.yaml --workdir tiny.yaml",
        ("tiny.yaml", "Not a directory"),
    ),
    Case(
        "a folder below a file",
        "embark train tiny.yaml --workdir tiny.yaml/run",
        ("tiny.yaml", "Not a directory"),
    ),
    Case(
        "a folder that cannot be written",
        "embark train tiny.yaml --workdir /proc/run",
        ("/proc/run", "No such file or directory"),
    ),
    Case(
        "a run of another model to resume",
        "embark train tiny.yaml embedding.dim=8 model.bottom=[8] train.steps=2 "
        "--workdir run --resume",
        ("embedding.dim is 4 in the run so far, 8 here",),
    ),
    Case(
        "a run on other data to resume",
        "embark train tiny.yaml data.train_samples=256 train.steps=2 "
        "--workdir run --resume",
        ("data.train_samples is 512 in the run so far, 256 here",),
    ),
    Case(
        "no run to plot",
        "embark plot raw --out a.png",
        ("raw: holds no metrics.jsonl, so it is no run's workdir",),
    ),
    Case(
        "a run without a step to plot",
        "embark plot run --out a.png",
        ("run: has logged nothing yet",),
        writing(METRICS, ""),
    ),
    Case(
        "a damaged log to plot",
        "embark plot run --out a.png",
        (f"{METRICS}, line 1: b'\\x80", "must be a JSON object with a step"),
        lambda: writing(METRICS, JUNK + b"\n" + Path(METRICS).read_bytes())(),
    ),
]


def _evaluate(given: str, checkpoint: str, *says: str, damage: Any = None) -> Case:
    command = f"embark evaluate tiny.yaml --checkpoint {checkpoint}"
    return Case(given, command, says, damage)


CHECKPOINTS = [
    _evaluate("a folder that is not there", "nope", "nope: no such folder"),
    _evaluate("a file", "tiny.yaml", "tiny.yaml: no such folder"),
    _evaluate("a folder without one", "raw", "raw: holds no complete checkpoint"),
    _evaluate("a step that was not kept", "run/checkpoints/7", "step 7"),
    _evaluate(
        "a checkpoint without its tables",
        "run/checkpoints",
        "run/checkpoints/1",
        damage=lambda: Path("run/checkpoints/1/device-0.bin").unlink(),
    ),
    Case(
        "of another model",
        "embark evaluate tiny.yaml model.top=[2,1] --checkpoint run/checkpoints",
        ("belongs to another experiment", "model.top is [1] in the checkpoint"),
    ),
    Case(
        "a folder to export that is no run",
        "embark export raw --out new",
        ("raw/config.yaml: No such file",),
    ),
    Case(
        "a step to export that was not kept",
        "embark export run --step 9 --out new",
        ("no complete checkpoint of step 9",),
    ),
    Case(
        "changes since a step that was not kept",
        "embark export run --since 9 --out new",
        ("no complete checkpoint of step 9",),
    ),
    Case(
        "changes since what is no step and no folder",
        "embark export run --since nope --out new",
        ("--since nope: must be a step, or the folder of a checkpoint or export",),
    ),
    Case(
        "a folder to export to that holds something",
        "embark export run --out raw",
        ("raw: is not empty, must be a new folder",),
    ),
]


def _score(given: str, change: Callable[[dict[str, np.ndarray]], Any], *says: str):
    def damage():
        arrays = samples()
        change(arrays)
        np.savez("samples.npz", **arrays)

    return Case(given, "score.py samples.npz", ("samples.npz: ", *says), damage)


EXPORTS = [
    Case("a file that is not there", "score.py nope.npz", ("nope.npz", "No such file")),
    Case(
        "a file of another kind",
        "score.py samples.npz",
        ("samples.npz: must be a .npz file as numpy.savez writes it",),
        writing("samples.npz", JUNK),
    ),
    Case(
        "half a file",
        "score.py samples.npz",
        ("samples.npz: must be a .npz file",),
        lambda: writing("samples.npz", Path("samples.npz").read_bytes()[:200])(),
    ),
    _score("no dense features", lambda a: a.pop("dense"), "array 'dense' is missing"),
    _score(
        "a feature left out",
        lambda a: a.pop("ids/items"),
        "ids of features items: missing; needed are items, user",
    ),
    _score(
        "a feature that the model does not know",
        lambda a: a.update({"ids/town": a["ids/user"]}),
        "ids of features town: unknown to the model",
    ),
    _score(
        "an array that is no feature",
        lambda a: a.update(labels=a["ids/user"]),
        "array 'labels': must be dense, ids/… or weights/…",
    ),
    _score(
        "weights that the model does not take",
        lambda a: a.update({"weights/user": a["ids/user"]}),
        "weights of features user: unknown to the model; needed are none",
    ),
    _score(
        "ids in one dimension",
        lambda a: a.update({"ids/user": a["ids/user"].ravel()}),
        "ids/user: shape is [5], must be [5, 1]",
    ),
    _score(
        "bags that are too long",
        lambda a: a.update({"ids/user": np.zeros((5, 2), int)}),
        "ids/user: shape is [5, 2], must be [5, 1]",
    ),
    _score(
        "ids of other samples",
        lambda a: a.update({"ids/user": np.zeros((4, 1), int)}),
        "ids/user: shape is [4, 1], must be [5, 1]",
    ),
    _score(
        "ids that are no integers",
        lambda a: a.update({"ids/user": a["ids/user"] + 0.5}),
        "ids/user: dtype is float64, must be integers",
    ),
    _score(
        "an id beyond its table",
        lambda a: a.update({"ids/user": a["ids/user"] + 300}),
        "feature 'user': ids must be -1 (padding) to 299, are 300 to 304",
    ),
    _score(
        "a dense feature too many",
        lambda a: a.update(dense=np.zeros((5, 3))),
        "dense: shape is [5, 3], must be [samples, 2]",
    ),
    _score(
        "a dense feature that is not a number",
        lambda a: a.update(dense=np.full((5, 2), np.nan)),
        "dense: must be finite",
    ),
]


def _option(given: str, words: str, *says: str) -> Case:
    return Case(given, f"embark {words}", says)


OPTIONS = [
    _option("an unknown command", "trian tiny.yaml", "No such command 'trian'"),
    _option("an unknown option", "train tiny.yaml --worker 3", "No such option"),
    _option("nothing to plan", "plan", "give either a CONFIG or --tables"),
    _option(
        "two things to plan",
        "plan tiny.yaml --tables tables.yaml",
        "give either a CONFIG or --tables",
    ),
    _option(
        "an option of table lists with a config",
        "plan tiny.yaml --nodes 8",
        "with a CONFIG write",
    ),
    _option(
        "no nodes",
        "plan --tables tables.yaml --nodes 0",
        "fleet: nodes is 0, must be a whole number >= 1",
    ),
    _option(
        "a batch that devices cannot share",
        "plan --tables tables.yaml --batch 7",
        "batch size 7 must be a multiple of the 8 devices",
    ),
    _option(
        "a negative skew",
        "plan --tables tables.yaml --zipf -1",
        "zipf_exponent is -1.0, must be from 0 to 20",
    ),
    _option(
        "a skew that is not a number",
        "plan --tables tables.yaml --zipf nan",
        "zipf_exponent is nan, must be from 0 to 20",
    ),
    _option(
        "an unknown optimizer",
        "plan --tables tables.yaml --optimizer lamb",
        "optimizer is 'lamb', must be one of sgd, adagrad",
    ),
    _option(
        "an unknown cost model",
        "plan --tables tables.yaml --cost-model mine",
        "cost_model is 'mine', must be one of",
    ),
    _option(
        "an unknown format on the wire",
        "plan --tables tables.yaml --wire-rows bf16",
        "Invalid value for '--wire-rows'",
    ),
    _option(
        "a folder to write to that is not there",
        "plan --tables tables.yaml --out nope/plan.json",
        "nope/plan.json",
        "there is no folder nope; create it first",
    ),
    _option(
        "a picture in another format",
        "plot run --out a.txt",
        "--out is a.txt: must end in .png or .svg or .html",
    ),
    _option(
        "a run to resume that is not named",
        "train tiny.yaml --resume",
        "--resume needs the --workdir",
    ),
    _option(
        "processes that do not train together",
        "train tiny.yaml --processes 2",
        "need --distributed",
    ),
    _option(
        "data of more memory than there is",
        "data synth --model a.yaml --rows 9 --out new",
        "hotness is 100,000,000",
        "this machine has",
    )._replace(damage=writing("a.yaml", "- {rows: 9, dim: 4, hotness: 100_000_000}")),
    _option(
        "an unknown shape of kernels",
        "bench kernels dlrm",
        "shape is 'dlrm'; ",
    ),
]

ENTRANCES = {
    "workdirs": WORKDIRS,
    "checkpoints": CHECKPOINTS,
    "exports and score.py": EXPORTS,
    "options": OPTIONS,
}
