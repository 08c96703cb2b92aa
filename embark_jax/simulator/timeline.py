"""Schedules tasks in time, on the streams of every device.

All devices run the same program, so a task is one object. It lasts as long on each
device as its work there takes. A task occupies resources; a resource of a device does
one task at a time. A *collective* is a task of a group of devices: it begins when the
last of them arrives, and ends on all at once, after the longest of their times.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

Resource = Literal["memory", "tensor cores", "node link", "network", "host link"]
LINKS: frozenset[Resource] = frozenset({"node link", "network"})
"""The links between devices."""


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Something that every device does once in a step.

    Attributes:
      name: its name, unique in the step.
      phase: the phase to which reports add its time.
      resources: resources that it occupies while it runs.
      ms: ``[devices]`` how long each device needs for it.
      after: names of the tasks that must end before it.
      group: number of neighbouring devices that begin and end it together.
    """

    name: str
    phase: str
    resources: frozenset[Resource]
    ms: np.ndarray
    after: tuple[str, ...] = ()
    group: int = 1

    @property
    def communicates(self) -> bool:
        """Whether only links work."""
        return self.resources <= LINKS | {"host link"}

    def together(self, times: np.ndarray) -> np.ndarray:
        """Returns ``[devices]``, the latest time of each device's group."""
        latest = times.reshape(-1, self.group).max(axis=1)
        return np.repeat(latest, self.group)


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """A scheduled task; a collective begins when the last device arrives.

    Attributes:
      task: what is done.
      start_ms, end_ms: ``[devices]`` from the beginning of the step.
    """

    task: Task
    start_ms: np.ndarray
    end_ms: np.ndarray


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A scheduled step.

    Attributes:
      spans: the spans of all tasks, in the order in which they were scheduled.
      devices: number of devices in the fleet.
    """

    spans: tuple[Span, ...]
    devices: int

    @property
    def step_ms(self) -> float:
        """Time until the last device has ended."""
        return max((float(span.end_ms.max()) for span in self.spans), default=0.0)

    def exposed_ms(self) -> np.ndarray:
        """Returns ``[devices]``, the time in which only links work."""
        rest = [span for span in self.spans if not span.task.communicates]
        return _busy(self.spans, self.devices) - _busy(rest, self.devices)

    def idle_ms(self) -> np.ndarray:
        """Returns ``[devices]``, the time in which nothing works, as the device waits
        for others."""
        return self.step_ms - _busy(self.spans, self.devices)

    def phase_ms(self) -> dict[str, np.ndarray]:
        """Returns ``[devices]``, the time of each phase's tasks, overlapped or not."""
        phases: dict[str, np.ndarray] = {}
        for span in self.spans:
            total = phases.setdefault(span.task.phase, np.zeros(self.devices))
            total += span.end_ms - span.start_ms
        return phases


def schedule(tasks: Sequence[Task]) -> Timeline:
    """Schedules by lists: among the tasks whose predecessors are scheduled, the one
    that can begin first on all its devices comes next; among several, the first in
    ``tasks``.

    The order is the same on every device, as collectives require.

    Raises:
      ValueError: if a task waits for a task that does not exist, or for itself.
    """
    devices = len(tasks[0].ms) if tasks else 0
    free: dict[Resource, np.ndarray] = {}
    placed: dict[str, Span] = {}
    waiting = list(tasks)
    while waiting:
        ready = [task for task in waiting if all(name in placed for name in task.after)]
        if not ready:
            stuck = {task.name: task.after for task in waiting}
            raise ValueError(f"tasks wait for tasks that never end: {stuck}")
        starts = []
        for task in ready:
            start = np.zeros(devices)
            for name in task.after:
                start = np.maximum(start, placed[name].end_ms)
            for resource in task.resources:
                start = np.maximum(start, free.get(resource, 0.0))
            starts.append(task.together(start))
        first = min(range(len(ready)), key=lambda i: float(starts[i].max()))
        task, start = ready[first], starts[first]
        end = start + task.together(task.ms)
        for resource in task.resources:
            free[resource] = end
        placed[task.name] = Span(task, start, end)
        waiting.remove(task)
    return Timeline(tuple(placed.values()), devices)


def serial(tasks: Sequence[Task]) -> list[Task]:
    """Returns the same tasks, each after the one before it, so that nothing
    overlaps."""
    chained = []
    for before, task in zip([None, *tasks], tasks, strict=False):
        after = () if before is None else (before.name,)
        chained.append(dataclasses.replace(task, after=after))
    return chained


def chrome_trace(timeline: Timeline) -> str:
    """Returns a JSON object of Chrome trace events, for Perfetto
    (https://ui.perfetto.dev), with one for each task of each device, on each resource
    that it occupies. A process is a device, a thread is one of its resources, and times
    are in microseconds. Tasks without duration are left out.

    Args:
      timeline: the timeline of a step.
    """
    streams: tuple[Resource, ...] = get_args(Resource)
    events: list[dict[str, Any]] = []

    def name(kind: str, name: str, device: int, stream: int = 0) -> None:
        where = {"pid": device, "tid": stream}
        events.append({"name": kind, "ph": "M", **where, "args": {"name": name}})

    for device in range(timeline.devices):
        name("process_name", f"device {device}", device)
        for stream, resource in enumerate(streams):
            name("thread_name", resource, device, stream)
    for span in timeline.spans:
        for device in range(timeline.devices):
            # Times are whole nanoseconds, so that rounding makes no two tasks overlap.
            start_ns = round(1e6 * span.start_ms[device])
            end_ns = round(1e6 * span.end_ms[device])
            events += [
                {
                    "name": span.task.name,
                    "cat": span.task.phase,
                    "ph": "X",
                    "ts": start_ns / 1e3,
                    "dur": (end_ns - start_ns) / 1e3,
                    "pid": device,
                    "tid": stream,
                }
                for stream, resource in enumerate(streams)
                if resource in span.task.resources and end_ns > start_ns
            ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _busy(spans: Sequence[Span], devices: int) -> np.ndarray:
    """Returns ``[devices]`` the time in which at least one of the spans lasts."""
    starts = np.array([span.start_ms for span in spans]).reshape(-1, devices)
    ends = np.array([span.end_ms for span in spans]).reshape(-1, devices)
    order = np.argsort(starts, axis=0)
    starts, ends = (np.take_along_axis(each, order, 0) for each in (starts, ends))
    covered = np.maximum.accumulate(np.vstack([np.zeros(devices), ends]))[:-1]
    return np.maximum(ends - np.maximum(starts, covered), 0.0).sum(axis=0)
