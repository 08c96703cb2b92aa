"""What the plots of runs show, read off their axes."""

import math

import numpy as np
import pytest

from embark_jax.report.curves import run_curves

RUN = [
    {"step": 10, "loss": 0.7, "train_auc": None, "samples_per_s": None},
    {"step": 20, "loss": 0.6, "train_auc": 0.6, "samples_per_s": 100.0},
    {"step": 20, "validation_log_loss": 0.65, "validation_auc": 0.55},
    {"step": 30, "loss": math.inf, "train_auc": 0.7, "samples_per_s": 200.0},
    {"step": 30, "test_log_loss": 0.66, "test_auc": 0.54},
]


@pytest.mark.parametrize(
    "name",
    [
        "runs/quickstart-20260101-12000{}",
        "a" * 200 + "/embedding.optimizer.learning_rate=0.{}",
    ],
)
def test_the_legend_of_ten_runs_is_shown_whole(name):
    names = [name.format(number) for number in range(10)]
    figure = run_curves(dict.fromkeys(names, RUN))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert [text[-20:] for text in shown[:10]] == [name[-20:] for name in names]
    inside = figure.bbox.padded(1).get_points()
    low, high = legend.get_window_extent().get_points()
    assert (inside[0] <= low).all()
    assert (high <= inside[1]).all()
    assert min(axes.get_window_extent().height for axes in figure.axes) > 200


def with_capacity(records, **used):
    extra = {f"capacity_used/{name}": share for name, share in used.items()}
    return [each | extra if "loss" in each else each for each in records]


def drawn(axes) -> list[tuple[list, list]]:
    """Points of each line, without the dotted one."""
    lines = [line for line in axes.lines if line.get_linestyle() != ":"]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]


def test_a_run_is_drawn_with_every_storage():
    figure = run_curves({"a": with_capacity(RUN, rb_4=0.5, ub_4=0.9)})
    loss, auc, speed, fill = figure.axes
    (steps, values), validation, test = drawn(loss)
    assert steps == [10, 20, 30]
    np.testing.assert_array_equal(values, [0.7, 0.6, math.nan])
    assert (validation, test) == (([20], [0.65]), ([30], [0.66]))
    assert drawn(auc) == [([20, 30], [0.6, 0.7]), ([20], [0.55]), ([30], [0.54])]
    assert drawn(speed) == [([20, 30], [100, 200])]
    assert [values for _, values in drawn(fill)] == [[0.5] * 3, [0.9] * 3]
    shown = [text.get_text() for text in fill.get_legend().get_texts()]
    assert shown == ["rb_4", "ub_4"]


@pytest.mark.parametrize("number", [2, 12])
def test_of_several_runs_each_has_a_color_and_its_fullest_storage(number):
    used = [0.1 + 0.05 * i for i in range(number)]
    runs = {f"run {i}": with_capacity(RUN, a=0.05, b=used[i]) for i in range(number)}
    figure = run_curves(runs)
    fill = figure.axes[3]
    assert [values for _, values in drawn(fill)] == [[each] * 3 for each in used]
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [*runs, "training", "validation", "test"]
    colors = [str(handle.get_color()) for handle in legend.get_lines()[:number]]
    assert len(set(colors)) == number


def test_a_run_whose_tables_are_all_replicated_has_no_capacity():
    assert drawn(run_curves({"a": RUN}).axes[3]) == []


def test_cached_tables_have_two_plots_more():
    def cached(first, second, late):
        shares = {"cache_hits/a": first, "cache_hits/b": second, "cache_late": late}
        return [each | shares if "loss" in each else each for each in RUN]

    *_, hits, late = run_curves({"x": cached(0.5, 0.9, 0.1)}).axes
    assert [values for _, values in drawn(hits)] == [[0.5] * 3, [0.9] * 3]
    assert drawn(late) == [([10, 20, 30], [0.1] * 3)]
    several = {"x": cached(0.5, 0.9, 0.1), "y": cached(0.8, 0.4, 0), "z": RUN}
    *_, hits, late = run_curves(several).axes
    assert [values for _, values in drawn(hits)] == [[0.5] * 3, [0.4] * 3, []]
    assert [values for _, values in drawn(late)] == [[0.1] * 3, [0] * 3, []]
