"""Schedules, worked by hand."""

import itertools
from typing import get_args

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from embark_jax.simulator import Task, schedule, serial
from embark_jax.simulator.timeline import Resource


def task(name, resource, ms, after=(), group=1):
    return Task(
        name, "phase", frozenset({resource}), np.array(ms, float), tuple(after), group
    )


def placed(timeline):
    return {
        span.task.name: (span.start_ms.tolist(), span.end_ms.tolist())
        for span in timeline.spans
    }


def test_a_resource_does_one_task_at_a_time_and_others_run_beside_it():
    timeline = schedule(
        [
            task("look up", "memory", [3]),
            task("exchange", "network", [4], ["look up"]),
            task("bottom", "tensor cores", [2]),
            task("index", "memory", [5]),
        ]
    )
    assert placed(timeline) == {
        "look up": ([0], [3]),
        "bottom": ([0], [2]),
        "exchange": ([3], [7]),
        "index": ([3], [8]),
    }
    assert timeline.step_ms == 8
    # Of the exchange all is hidden behind the index; nothing is idle.
    assert timeline.exposed_ms() == [0]
    assert timeline.idle_ms() == [0]


def test_what_can_begin_first_goes_first_whatever_the_order_given():
    timeline = schedule(
        [
            task("a", "memory", [2]),
            task("late", "network", [1], ["a"]),
            task("early", "network", [5]),
        ]
    )
    # "early" holds the network from 0 to 5.
    assert placed(timeline)["late"] == ([5], [6])


def test_a_collective_begins_with_the_last_device_and_ends_on_all():
    timeline = schedule(
        [
            task("look up", "memory", [1, 2, 3, 4]),
            task("in node", "node link", [5, 1, 1, 2], ["look up"], group=2),
            task("over all", "network", [1, 1, 1, 1], ["in node"], group=4),
        ]
    )
    assert placed(timeline) == {
        "look up": ([0, 0, 0, 0], [1, 2, 3, 4]),
        "in node": ([2, 2, 4, 4], [7, 7, 6, 6]),
        "over all": ([7, 7, 7, 7], [8, 8, 8, 8]),
    }
    assert timeline.exposed_ms().tolist() == [6, 6, 3, 3]
    assert timeline.idle_ms().tolist() == [1, 0, 2, 1]
    assert timeline.phase_ms()["phase"].tolist() == [7, 8, 6, 7]


def test_a_task_may_hold_several_resources():
    both = Task(
        "exchange", "phase", frozenset({"network", "node link"}), np.array([2.0])
    )
    timeline = schedule([both, task("push", "node link", [3])])
    assert placed(timeline)["push"] == ([2], [5])
    assert timeline.exposed_ms() == [5]


def test_serial_tasks_follow_each_other():
    tasks = [
        task("a", "memory", [1]),
        task("b", "network", [2]),
        task("c", "tensor cores", [3]),
    ]
    timeline = schedule(serial(tasks))
    assert placed(timeline) == {"a": ([0], [1]), "b": ([1], [3]), "c": ([3], [6])}
    assert timeline.exposed_ms() == [2]


def test_links_that_work_at_once_are_exposed_once():
    timeline = schedule(
        [
            task("a", "network", [4]),
            task("b", "node link", [6]),
            task("c", "memory", [1]),
        ]
    )
    assert timeline.exposed_ms() == [5]


@pytest.mark.parametrize("after", ["nothing like it", "b"])
def test_a_task_that_waits_in_vain_is_named(after):
    with pytest.raises(ValueError, match=f"'b': \\('{after}',\\)"):
        schedule([task("a", "memory", [1]), task("b", "memory", [1], [after])])


@st.composite
def programs(draw):
    """Tasks that each wait for some of those before them."""
    devices, tasks = draw(st.sampled_from([1, 2, 4])), []
    for i in range(draw(st.integers(1, 8))):
        before = [each.name for each in tasks]
        after = draw(st.lists(st.sampled_from(before))) if before else []
        resources = st.sampled_from(get_args(Resource))
        durations = st.lists(st.integers(0, 9), min_size=devices, max_size=devices)
        held = draw(st.frozensets(resources, min_size=1, max_size=2))
        ms = np.array(draw(durations), float)
        group = draw(st.sampled_from([1, devices]))
        tasks.append(Task(f"t{i}", "phase", held, ms, tuple(after), group))
    return tasks


@hypothesis.given(programs())
@hypothesis.settings(max_examples=60, deadline=None)
def test_no_resource_is_held_twice_and_nothing_comes_too_early(tasks):
    timeline = schedule(tasks)
    spans = {span.task.name: span for span in timeline.spans}
    assert set(spans) == {task.name for task in tasks}
    for task in tasks:
        span = spans[task.name]
        np.testing.assert_array_equal(
            span.end_ms - span.start_ms, task.ms if task.group == 1 else task.ms.max()
        )
        for name in task.after:
            assert (spans[name].end_ms <= span.start_ms).all()
    for device in range(timeline.devices):
        for resource in get_args(Resource):
            held = sorted(
                (span.start_ms[device], span.end_ms[device])
                for span in timeline.spans
                if resource in span.task.resources
                and span.end_ms[device] > span.start_ms[device]
            )
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(held))
    if timeline.devices == 1:  # of several, one may wait for another's tasks
        assert timeline.step_ms <= schedule(serial(tasks)).step_ms
    busy_ms = timeline.step_ms - timeline.idle_ms()
    assert (timeline.exposed_ms() <= busy_ms).all()
