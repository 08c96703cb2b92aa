"""Searches whose values Optuna chooses, each by those before it.

Optuna (https://optuna.org) keeps the trials in ``search.db``, where its own commands,
dashboard and plots read them.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import filelock
import numpy as np

from embark_jax._base.config import ConfigError
from embark_jax.config import SearchedConfig
from embark_jax.run.search import DIVERGED, Trials

try:
    import optuna
    from optuna.trial import FrozenTrial, TrialState
except ImportError:
    raise ConfigError(
        "search has a range of values, or fewer --trials than all combinations: Optuna "
        "chooses among them, which is not installed: pip install 'embark_jax[search]'"
    ) from None

STORAGE = "search.db"
DEFAULT_TRIALS = 20


def search(trials: Trials, wanted: int | None) -> None:
    """Trains trials until this number has begun; see ``search.search``."""
    trials.check([trials.config], is_grid=False)
    trials.open()
    wanted = wanted or DEFAULT_TRIALS
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    with filelock.FileLock(trials.workdir / f"{STORAGE}.lock"):  # two would make it
        study = optuna.create_study(
            storage=f"sqlite:///{trials.workdir / STORAGE}",
            study_name=f"{trials.config.name}, {trials.metric}",
            direction="maximize" if trials.higher_is_better else "minimize",
            load_if_exists=True,
        )
        _enqueue_left(study, trials)

    def objective(trial: optuna.Trial) -> float:
        begun = _begun(study, trials).values()
        if sum(number < trial.number for number in begun) >= wanted:
            study.stop()  # others took the last ones
            raise optuna.TrialPruned
        # Trials of one number are drawn once, whatever process draws them, and by the
        # same command alike: a sampler of one seed would begin anew with each process.
        seed = np.random.SeedSequence([trials.config.seed, trial.number])
        study.sampler = optuna.samplers.TPESampler(
            seed=int(seed.generate_state(1)[0]), constant_liar=True
        )
        values = {key: _suggest(trial, key, s) for key, s in trials.searched.items()}
        name = trial.user_attrs.get("folder", f"trial-{trial.number:04d}")
        lock = trials.claim(name)
        assert lock is not None, f"{name} has a number of its own"
        with lock:
            trial.set_user_attr("folder", name)
            if not trials.train(name, values):
                study.stop()
                raise optuna.TrialPruned
            return trials.best(name)

    def stop_at_the_end(study: optuna.Study, _: FrozenTrial) -> None:
        if len(_begun(study, trials)) >= wanted:
            study.stop()

    if len(_begun(study, trials)) < wanted:
        study.optimize(objective, catch=DIVERGED, callbacks=[stop_at_the_end])


def _begun(study: optuna.Study, trials: Trials) -> dict[str, int]:
    """Returns the folders that count, with the number of their first trial: of those
    that run, and those that have ended, also as they diverged."""
    begun: dict[str, int] = {}
    for trial in study.get_trials(deepcopy=False):
        name = trial.user_attrs.get("folder", f"trial-{trial.number:04d}")
        if trial.state == TrialState.RUNNING or trials.has_ended(name):
            begun.setdefault(name, trial.number)
    return begun


def _enqueue_left(study: optuna.Study, trials: Trials) -> None:
    """Lets trials be run again that were asked to end, failed on the way, or whose
    process was killed, so that nobody has locked their folders."""
    left = {each.user_attrs.get("folder"): each for each in study.trials}  # the last
    for name, trial in left.items():
        is_waiting = trial.state == TrialState.WAITING
        if name is None or is_waiting or trials.has_ended(name):
            continue
        if (lock := trials.claim(name)) is not None:
            with lock:
                if trial.state == TrialState.RUNNING:
                    study.tell(trial.number, state=TrialState.PRUNED)
                study.enqueue_trial(trial.params, {"folder": name})


def _suggest(trial: optuna.Trial, key: str, searched: SearchedConfig) -> Any:
    low, high = searched.low, searched.high
    if searched.choose is not None or low is None or high is None:
        choices = [json.dumps(value) for value in searched.choose or ()]  # or of lists
        return json.loads(trial.suggest_categorical(key, choices))
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=searched.log)
    return trial.suggest_float(key, low, high, log=searched.log)
