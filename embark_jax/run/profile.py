"""A trace of some steps of a run, which XProf and Perfetto show."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import jax

from embark_jax._base.config import ConfigError
from embark_jax.run.callbacks import Callback

PROFILE = "profile"


class StepProfile(Callback, contextlib.AbstractContextManager):
    """Traces steps into ``profile/`` of a run; leaving its context closes the trace.

    Process 0 alone writes one, of its own devices: all processes run one program.
    ``steps`` are the numbers, from 1, of the first and the last; None traces nothing.
    """

    def __init__(
        self,
        workdir: Path,
        steps: tuple[int, int] | None,
        say: Callable[[str], None],
    ):
        self._stops = [steps[0] - 1, steps[1]] if steps else []
        self._folder, self._say = workdir / PROFILE, say
        self._tracing = self._traced = False

    def check(self, step: int, last_step: int) -> None:
        """Raises ``ConfigError`` unless the steps are in a run that is at ``step``."""
        if self._stops and not step <= self._stops[0] < self._stops[1] <= last_step:
            raise ConfigError(
                f"--profile {self._stops[0] + 1}:{self._stops[1]}: this run trains "
                f"steps {step + 1} to {last_step}; name some of these"
            )

    def next_stop(self, step: int) -> int | None:
        return next((stop for stop in self._stops if stop > step), None)

    def begin(self, step: int) -> None:
        if step in self._stops[:1] and jax.process_index() == 0:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # Python's calls would hide the step
            jax.profiler.start_trace(self._folder, profiler_options=options)
            self._tracing = self._traced = True

    def at_stop(self, step: int) -> None:
        if self._tracing and step == self._stops[1]:
            self._tracing = False
            jax.profiler.stop_trace()

    def __exit__(self, *_) -> None:
        if self._tracing:
            jax.profiler.stop_trace()
        if self._traced:
            shown = f"{traces(self._folder.parent)[-1]} (open it at https://ui.perfetto"
            self._say(f"profile: {shown}.dev; or xprof --logdir {self._folder})")
        elif self._stops and jax.process_index() == 0:
            self._say(f"no profile: training ended before step {self._stops[0] + 1}")


def traces(workdir: Path) -> list[Path]:
    """Returns the traces of a run that Perfetto opens, the oldest first."""
    return sorted((workdir / PROFILE).glob("plugins/profile/*/*.trace.json.gz"))
