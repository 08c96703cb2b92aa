"""Histories whose last events are held out, against lists."""

import numpy as np

from embark_jax.data import LeaveOneOut

EVENTS = {3: [5, 1, 2, 8, 0, 4], 7: [6, 6], 9: [7, 2, 3]}
LENGTH = 2


def dataset(**options) -> LeaveOneOut:
    users = np.repeat(list(EVENTS), [len(items) for items in EVENTS.values()])
    items = np.concatenate(list(EVENTS.values()))
    return LeaveOneOut(users, items, 9, length=LENGTH, **options)


def samples(batches) -> list[list[int]]:
    """Each sample's earlier items, and its item."""
    rows = []
    for batch in batches:
        for past, item in zip(
            batch.ids["earlier_items"], batch.ids["item"], strict=True
        ):
            rows.append([int(i) for i in (*past, *item)])
    return sorted(rows)


def test_the_last_events_are_held_out():
    data = dataset()
    assert samples(data.test_batches(2)) == sorted([[8, 0, 4], [7, 2, 3]])
    assert samples(data.validation_batches(1)) == sorted([[2, 8, 0], [-1, 7, 2]])
    trained = [[-1, 5, 1], [5, 1, 2], [1, 2, 8], [-1, 6, 6]]
    assert data.train_samples == len(trained)
    assert samples([data.train_batch(0, 4)]) == sorted(trained)
    assert samples([data.train_batch(1, 4)]) == sorted(trained)  # another epoch


def test_a_stride_keeps_the_latest():
    assert samples([dataset(stride=LENGTH + 1).train_batch(0, 2)]) == sorted(
        [[1, 2, 8], [-1, 6, 6]]
    )
