"""What a run says at its end."""

import re
from io import StringIO

import pytest
from rich.console import Console

from embark_jax.report.display import show_result


@pytest.mark.parametrize(
    ("metrics", "notes"),
    [
        ({"auc": 0.7, "accuracy": 0.8}, []),
        (
            {"auc": None, "accuracy": 0.8},
            ["undefined: auc, needs labels of both 0 and 1, and none between"],
        ),
        (
            {"hr@10": None, "ndcg@10": None, "auc": 0.5},
            ["undefined: hr@10, ndcg@10, needs a sample of label 1"],
        ),
        (
            {
                **{"auc": None, "samples/click": 9, "auc/click": None},
                **{"calibration/click": None, "samples/buy": 0, "auc/buy": None},
            },
            [
                "undefined: all of buy, no sample has its label",
                "undefined: auc/click, needs labels of both 0 and 1, and none between",
                "undefined: calibration/click, needs a label above 0",
            ],
        ),
    ],
)
def test_metrics_that_labels_do_not_allow_are_named(metrics, notes):
    file = StringIO()
    record = {"test_samples": 9} | {f"test_{n}": x for n, x in metrics.items()}
    show_result(record, Console(file=file, width=100))
    table, _, _ = file.getvalue().partition("└")
    assert re.findall("^undefined: .*", file.getvalue(), re.MULTILINE) == notes
    for name, value in metrics.items():
        (row,) = (line for line in table.splitlines() if f" {name} " in line)
        assert ("undefined" in row) == (value is None)


def test_no_table_is_shown_of_a_test_set_that_is_not_there():
    file = StringIO()
    show_result({"test_samples": 0, "test_step": 3}, Console(file=file, width=100))
    assert file.getvalue() == "the data have no test set: nothing was measured\n"
