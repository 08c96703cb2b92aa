"""A trace of some steps of a run, which XProf and Perfetto show."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from embark_jax._base.config import ConfigError

PROFILE = "profile"


class StepProfile(contextlib.AbstractContextManager):
    """Traces steps into ``profile/`` of a run; leaving its context closes the trace.

    Process 0 alone writes one, of its own devices: all processes run one program.
    ``steps`` are the numbers, from 1, of the first and the last; None traces nothing.
    ``stops`` are the steps before and at the end, where all steps must have landed.
    """

    def __init__(
        self,
        workdir: Path,
        steps: tuple[int, int] | None,
        say: Callable[[str], None],
    ):
        self.stops: tuple[int, ...] = (steps[0] - 1, steps[1]) if steps else ()
        self._workdir = workdir
        self._say = say
        self._tracing = self._traced = False

    def check(self, step: int, last_step: int) -> None:
        """Raises ``ConfigError`` unless the steps are in a run that is at ``step``."""
        if self.stops and not step <= self.stops[0] < self.stops[1] <= last_step:
            raise ConfigError(
                f"--profile {self.stops[0] + 1}:{self.stops[1]}: this run trains steps "
                f"{step + 1} to {last_step}; name some of these"
            )

    def begin(self, step: int, state: Any) -> None:
        """Begins the trace if its first step comes after ``step``."""
        if step in self.stops[:1] and jax.process_index() == 0:
            jax.block_until_ready(state)
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # Python's calls would hide the step
            folder = self._workdir / PROFILE
            jax.profiler.start_trace(folder, profiler_options=options)
            self._tracing = self._traced = True

    def end(self, step: int, state: Any) -> None:
        """Ends the trace if ``step`` is its last."""
        if self._tracing and step == self.stops[1]:
            jax.block_until_ready(state)
            self._tracing = False
            jax.profiler.stop_trace()

    def __exit__(self, *_) -> None:
        if self._tracing:
            jax.profiler.stop_trace()
        if self._traced:
            shown = f"{traces(self._workdir)[-1]} (open it at https://ui.perfetto.dev; "
            self._say(f"profile: {shown}or xprof --logdir {self._workdir / PROFILE})")
        elif self.stops and jax.process_index() == 0:
            self._say(f"no profile: training ended before step {self.stops[0] + 1}")


def traces(workdir: Path) -> list[Path]:
    """Returns the traces of a run that Perfetto opens, the oldest first."""
    return sorted((workdir / PROFILE).glob("plugins/profile/*/*.trace.json.gz"))
