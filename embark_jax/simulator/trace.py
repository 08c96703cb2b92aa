"""Writes a timeline as Chrome trace events, for Perfetto (https://ui.perfetto.dev).

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from typing import Any, get_args

from embark_jax.simulator.timeline import Resource, Timeline

STREAMS: tuple[Resource, ...] = get_args(Resource)


def chrome_trace(timeline: Timeline) -> str:
    """Returns a JSON object with an event for each task of each device, on each
    resource that it occupies. A process is a device, a thread is one of its resources,
    and times are in microseconds. Tasks without duration are left out.

    Args:
      timeline: the timeline of a step.
    """
    events: list[dict[str, Any]] = []
    for device in range(timeline.devices):
        events.append(_name("process_name", f"device {device}", device))
        for stream, resource in enumerate(STREAMS):
            events.append(_name("thread_name", resource, device, stream))
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
                for stream, resource in enumerate(STREAMS)
                if resource in span.task.resources and end_ns > start_ns
            ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _name(kind: str, name: str, device: int, stream: int = 0) -> dict[str, Any]:
    args = {"name": name}
    return {"name": kind, "ph": "M", "pid": device, "tid": stream, "args": args}
