"""What the plots of runs show, read off their axes."""

import itertools
import math

import numpy as np
import pytest

from embark_jax.report.curves import compared_curves, run_curves, value_plots

RUN = [
    {"step": 10, "loss": 0.7, "train_auc": None, "samples_per_s": None},
    {"step": 20, "loss": 0.6, "train_auc": 0.6, "samples_per_s": 100.0},
    {"step": 20, "validation_log_loss": 0.65, "validation_auc": 0.55},
    {"step": 30, "loss": math.inf, "train_auc": 0.7, "samples_per_s": 200.0},
    {"step": 30, "test_log_loss": 0.66, "test_auc": 0.54},
]


def with_capacity(records, **used):
    extra = {f"capacity_used/{name}": share for name, share in used.items()}
    return [each | extra if "loss" in each else each for each in records]


def drawn(axes) -> list[tuple[list, list]]:
    """Points of each line, without the dotted one."""
    lines = [line for line in axes.lines if line.get_linestyle() != ":"]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]


def test_a_run_is_drawn_with_every_storage():
    figure = run_curves(with_capacity(RUN, rb_4=0.5, ub_4=0.9))
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


def test_a_run_whose_tables_are_all_replicated_has_no_capacity():
    assert drawn(run_curves(RUN).axes[3]) == []


def test_cached_tables_have_two_plots_more():
    def cached(first, second, late):
        shares = {"cache_hits/a": first, "cache_hits/b": second, "cache_late": late}
        return [each | shares if "loss" in each else each for each in RUN]

    *_, hits, late = run_curves(cached(0.5, 0.9, 0.1)).axes
    assert [values for _, values in drawn(hits)] == [[0.5] * 3, [0.9] * 3]
    assert drawn(late) == [([10, 20, 30], [0.1] * 3)]


def test_seeds_of_one_config_are_drawn_in_one_colour():
    figure = compared_curves({"slow and 1 more": [RUN, RUN[:2]], "fast": [RUN]})
    loss, *_ = figure.axes
    assert [line.get_color() for line in loss.lines] == ["C0", "C0", "C1"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["slow and 1 more", "fast"]


@pytest.mark.parametrize("values", [(0.0118, 0.05, 0.274), (1e-6, 1e-3, 2), (1, 5)])
def test_values_over_an_axis_do_not_overlap(values):
    figure = value_plots({"rate": [(v, 0.5) for v in values]}, "validation_auc")
    figure.canvas.draw()
    axes, *_ = figure.axes
    labels = axes.get_xticklabels() + axes.get_xticklabels(minor=True)
    left, right = axes.bbox.intervalx
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    boxes = sorted((b.x0, b.x1) for b in boxes if left <= (b.x0 + b.x1) / 2 <= right)
    assert len(boxes) > 1
    assert all(a[1] < b[0] for a, b in itertools.pairwise(boxes))


def test_long_values_are_slanted():
    lists = [([64 * i, 32, 16], 0.5) for i in range(1, 5)]
    figure = value_plots({"deep": lists, "kind": [("dcn", 0.5)]}, "test_auc")
    angles = [axes.get_xticklabels()[0].get_rotation() for axes in figure.axes[:2]]
    assert angles == [30, 0]
