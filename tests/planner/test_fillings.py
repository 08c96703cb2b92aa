"""What fits in a bin, against all ways to fill it."""

import itertools

import numpy as np
import pytest

from embark_jax.planner.fillings import Bins, fillings, heaviest, in_pairs


def fits_somehow(sizes, devices: int, capacity: float, most: int) -> bool:
    """Whether any owners of the shards leave no device with too much."""
    for owners in itertools.product(range(devices), repeat=len(sizes)):
        held = np.bincount(owners, sizes, devices)
        if max(held) <= capacity and np.bincount(owners).max(initial=0) <= most:
            return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_shards_fit_in_pairs_if_any_owners_do(seed):
    dice = np.random.default_rng(seed)
    devices = int(dice.integers(2, 4))
    sizes = np.sort(dice.integers(1, 9, int(dice.integers(1, 2 * devices + 1))))[::-1]
    held = np.zeros((1, 2 * devices))
    fits = np.ones(1, bool)
    for column in np.array_split(sizes.astype(float), -(-len(sizes) // devices)):
        parts = np.pad(column, (0, devices - len(column)))
        held, fits = in_pairs(held, parts, capacity=9.0)
    assert fits[0] == fits_somehow(sizes, devices, 9.0, most=2)


def test_more_than_two_shards_for_each_device_do_not_fit_in_pairs():
    held, fits = in_pairs(np.ones((1, 4)), np.array([1.0, 0.0]), capacity=9.0)
    assert held.shape == (1, 4)
    assert not fits[0]


@pytest.mark.parametrize("seed", range(10))
def test_fillings_are_all_that_fit_a_device(seed):
    dice = np.random.default_rng(seed)
    sizes, pieces = dice.integers(1, 6, (2, 3)).astype(float)
    bins = Bins(10.0, np.array([8.0]))
    found = fillings(pieces[:, None], sizes[:, None], bins)
    expected = [
        numbers
        for numbers in itertools.product(range(11), repeat=3)
        if np.dot(numbers, sizes) <= 10 and np.dot(numbers, pieces) <= 8
    ]
    assert sorted(map(tuple, found.tolist())) == sorted(expected)
    assert not found[0].any()


def test_pairs_leave_fillings_out_that_fit_the_node_together():
    # Of three columns 15 of 18 are full, but two devices hold four of their six shards.
    pieces, parts = np.ones((1, 1)), np.array([[4.0, 1.0]])
    whole = fillings(pieces, parts, Bins(9.0, np.array([9.0])))
    paired = fillings(pieces, parts, Bins(9.0, np.array([9.0]), paired=True))
    assert whole.max() == 3
    assert paired.max() == 2


@pytest.mark.parametrize("seed", range(10))
def test_weights_show_a_mean_that_no_mixture_holds(seed):
    dice = np.random.default_rng(seed)
    sizes = dice.uniform(1, 6, 4)
    found = fillings(np.zeros((4, 0)), sizes[:, None], Bins(10.0, np.zeros(0)))
    mixture = found.T @ dice.dirichlet(np.ones(len(found)))
    assert (found @ heaviest(found, mixture) <= 1 + 1e-9).all()
    assert heaviest(found, mixture) @ mixture <= 1 + 1e-9
    # As much of each as fits, of all at once.
    assert heaviest(found, found.max(axis=0)) @ found.max(axis=0) > 1
