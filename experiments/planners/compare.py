"""One model on one fleet: the placements of all planners, priced alike."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import embark_greedy
import torchrec_plans
from baselines import BASELINES, Placements
from embark_formula import EmbarkModel

from embark_jax import planner
from embark_jax.planner import (
    ProgramModel,
    TableList,
    Workload,
    read_table_list,
)
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.model import CostModel
from embark_jax.plans.fleet import dgx_h100
from embark_jax.plans.plan import Plan

MODELS = Path(__file__).parents[2] / "configs" / "models"
OURS, EMBARK, TORCHREC = "embark_jax", "EMBark's greedy", "TorchRec"
PLANNERS = (OURS, EMBARK, TORCHREC, *BASELINES)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of ``configs/models`` on so many DGX H100."""

    model: str
    nodes: int

    @property
    def listed(self) -> TableList:
        return read_table_list((MODELS / f"{self.model}.yaml").read_text())

    @property
    def workload(self) -> Workload:
        """As the list says that the model was measured."""
        listed, fleet = self.listed, dgx_h100(self.nodes)
        if not (listed.batch and listed.zipf_exponent and listed.optimizer):
            raise ValueError(
                f"{self.model}: needs batch, zipf_exponent and optimizer, has "
                f"{listed.batch}, {listed.zipf_exponent} and {listed.optimizer}"
            )
        return Workload(
            fleet,
            listed.batch,
            listed.zipf_exponent,
            optimizer=listed.optimizer,
            kernels="mosaic_gpu",
        )

    @property
    def fits(self) -> bool:
        """Whether its tables could, evenly spread, with nothing else on the devices."""
        workload = self.workload
        memory = Memory(workload)
        tables, _ = self.listed.specs()
        table_bytes = sum(table.rows * memory.row_bytes(table.dim) for table in tables)
        return table_bytes / workload.devices <= memory.limit_bytes


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What a planner came up with.

    Attributes:
      placements: or None, if it found none.
      wall_s, cpu_s: it took.
      note: why there are none, or how they were come by.
    """

    placements: Placements | None
    wall_s: float | None = None
    cpu_s: float | None = None
    note: str = ""


def compare(case: Case, torchrec: Mapping[str, Any]) -> dict[str, Any]:
    """Step times, memory and planning times of all planners, as JSON.

    Args:
      case: what is planned.
      torchrec: its answer, see ``torchrec_plans``.
    """
    tables, features = case.listed.specs()
    workload = case.workload
    for_all = {
        TORCHREC: _torchrec(case, torchrec),
        **{
            name: _timed(lambda b=baseline: b(tables, features, workload))
            for name, baseline in BASELINES.items()
        },
    }
    program, embark = ProgramModel(workload), EmbarkModel(workload)
    greedies = _greedies(case, program)
    costs = {}
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        # In a process of its own no case finds the caches of another filled.
        plans = [fresh.submit(_ours, case, model) for model in (program, embark)]
        ours_and_bounds = [plan.result() for plan in plans]
    for model, (ours, bound_ms) in zip((program, embark), ours_and_bounds, strict=True):
        attempts = {OURS: ours, EMBARK: _best(greedies, case, model), **for_all}
        costs[model.name] = {
            "bound_ms": bound_ms,
            "planners": {
                name: _priced(attempts[name], case, model) for name in PLANNERS
            },
        }
    return {
        "model": case.listed.name,
        "gpus": workload.devices,
        "tables": len(tables),
        "batch": workload.batch_size,
        "zipf_exponent": workload.zipf_exponent,
        "optimizer": workload.optimizer,
        "costs": costs,
    }


def _priced(attempt: Attempt, case: Case, model: CostModel) -> dict[str, Any]:
    """Of an attempt, what the tables and plots show."""
    entry: dict[str, Any] = {
        "wall_s": attempt.wall_s,
        "cpu_s": attempt.cpu_s,
        "note": attempt.note,
    }
    if attempt.placements is None:
        return entry
    clusters = {placement.cluster for placement in attempt.placements}
    if unpriced := clusters - set(model.clusters):
        names = ", ".join(sorted(unpriced)).upper()
        return entry | {"note": f"has {names}, which this cost model does not price"}
    _, features = case.listed.specs()
    workload = case.workload
    prediction = planner.predict(attempt.placements, features, workload, model)
    needed_bytes = max(prediction.device_bytes)
    return entry | {
        "step_ms": prediction.step_ms,
        "device_gb": needed_bytes / 1e9,
        "fits": needed_bytes <= Memory(workload).limit_bytes,
    }


def _ours(case: Case, cost_model: CostModel) -> tuple[Attempt, float | None]:
    """The plan, and its lower bound in ms."""
    tables, features = case.listed.specs()
    workload = case.workload
    bounds_ms = []

    def placements() -> Placements:
        plan: Plan = planner.plan(
            tables,
            features,
            workload.fleet,
            workload.batch_size,
            zipf_exponent=workload.zipf_exponent,
            optimizer=workload.optimizer,
            cost_model=cost_model,
            kernels=workload.kernels,
        )
        assert plan.prediction is not None
        bounds_ms.append(plan.prediction.lower_bound_ms)
        return plan.placements

    return _timed(placements), bounds_ms[0] if bounds_ms else None


def _greedies(case: Case, model: CostModel) -> list[Attempt]:
    """EMBark's greedy with every setting of a grid, and with less memory for tables
    where it then does not fit."""
    tables, features = case.listed.specs()
    attempts = []
    for settings in embark_greedy.settings(len(tables), case.workload):
        for gib in embark_greedy.TABLE_GIB:
            chosen = dataclasses.replace(settings, table_gib=gib)
            attempt = _timed(
                lambda chosen=chosen: embark_greedy.plan(
                    tables, features, case.workload, chosen
                )
            )
            if attempt.placements is not None:
                said = dataclasses.asdict(chosen).items()
                note = ", ".join(f"{key} {value}" for key, value in said)
                attempt = dataclasses.replace(attempt, note=note)
            attempts.append(attempt)
            if _priced(attempt, case, model).get("fits"):
                break
    return attempts


def _best(attempts: Sequence[Attempt], case: Case, model: CostModel) -> Attempt:
    """By ``model``, among those that fit, or else among all; the seconds are those of
    this attempt alone."""

    def rank(attempt: Attempt) -> tuple[bool, float]:
        priced = _priced(attempt, case, model)
        return not priced.get("fits"), priced.get("step_ms", float("inf"))

    return min(attempts, key=rank)


def _torchrec(case: Case, answer: Mapping[str, Any]) -> Attempt:
    tables, _ = case.listed.specs()
    return Attempt(
        torchrec_plans.placements(answer, tables) if "tables" in answer else None,
        answer.get("wall_s"),
        answer.get("cpu_s"),
        answer.get(
            "error", f"told {answer.get('memory_bytes', 0) / 1e9:g} GB a device"
        ),
    )


def torchrec_fits(case: Case, answer: Mapping[str, Any]) -> bool:
    """Whether the plan of an answer fits, as we would lay it out."""
    priced = _priced(_torchrec(case, answer), case, ProgramModel(case.workload))
    return priced.get("fits", False)


def _timed(plan: Callable[[], Placements]) -> Attempt:
    wall, cpu = time.perf_counter(), time.process_time()
    placements, note = None, ""
    try:
        placements = plan()
    except ValueError as error:  # the tables do not fit
        note = str(error)
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return Attempt(placements, wall_s, cpu_s, note)
