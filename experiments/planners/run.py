"""Compares planners; see README.md beside this.

    python experiments/planners/run.py [--torchrec-python VENV/bin/python]

Writes results/MODEL_GPUS.json, and from all there are results/README.md and plots.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import report
import torchrec_plans
from compare import MODELS, Case, compare, torchrec_fits
from rich.progress import track

RESULTS = Path(__file__).parent / "results"
MEMORY_SHARES = (1.0, 0.5)
"""Of the devices' memory, that TorchRec is told to use."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares planners.")
    known = sorted(path.stem for path in MODELS.glob("*.yaml"))
    # Lists without skew are of no measured model.
    known = [model for model in known if Case(model, nodes=1).listed.zipf_exponent]
    parser.add_argument("--models", nargs="+", choices=known, default=known)
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument(
        "--torchrec-python",
        type=Path,
        help="of an environment with TorchRec; unless given, its saved plans are taken",
    )
    parser.add_argument("--torchrec-limit-s", type=float, default=900)
    parser.add_argument(
        "--torchrec-all-kernels",
        action="store_true",
        help="as it comes: it may keep tables in host memory, and takes longer",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    cases = [Case(model, nodes) for nodes in given.nodes for model in given.models]
    for case in track([case for case in cases if case.fits], "planning"):
        name = f"{case.model}_{case.workload.devices}.json"
        saved = given.results / "torchrec" / name
        if given.torchrec_python is not None:
            answer = _ask_torchrec(case, given)
            _write(saved, answer, indent=None)
        elif saved.exists():
            answer = json.loads(saved.read_text())
        else:
            answer = {"error": "TorchRec is absent"}
        versions = {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "highspy")},
            **{name: answer[name] for name in ("torch", "torchrec") if name in answer},
        }
        result = {
            **compare(case, answer),
            "versions": versions,
            "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
            "torchrec_in_this_run": given.torchrec_python is not None,
        }
        _write(given.results / name, result, indent=1)
    report.write(given.results)


def _ask_torchrec(case: Case, given: argparse.Namespace) -> dict[str, Any]:
    """Its plan, or one with less memory than it was told, where that does not fit."""
    answer: dict[str, Any] = {}
    for share in MEMORY_SHARES:
        answer = torchrec_plans.ask(
            given.torchrec_python,
            *case.listed.specs(),
            case.workload,
            share,
            given.torchrec_limit_s,
            given.torchrec_all_kernels,
        )
        if "error" in answer or torchrec_fits(case, answer):
            break
    return answer


def _write(path: Path, value: Any, indent: int | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent) + "\n")


if __name__ == "__main__":
    main()
