"""What a run says at its end."""

from io import StringIO

import pytest
from rich.console import Console

from embark_jax.report.display import show_result


@pytest.mark.parametrize(
    ("auc", "accuracy", "note"),
    [
        (0.7, 0.8, ""),
        (None, 0.8, "AUC is left out: it needs labels of both 0 and 1"),
        (
            None,
            None,
            "AUC and accuracy are left out: they need labels of 0 and 1 alone",
        ),
    ],
)
def test_metrics_that_labels_do_not_allow_are_named(auc, accuracy, note):
    file = StringIO()
    record = {"test_samples": 9, "test_auc": auc, "test_accuracy": accuracy}
    show_result(record, Console(file=file, width=100))
    shown = file.getvalue()
    assert note in shown
    assert ("left out" in shown) == (note != "")
