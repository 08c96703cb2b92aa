"""Makes sequences of what a user met before each sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64


@dataclasses.dataclass(frozen=True)
class History:
    """Which sequences samples get.

    Attributes:
      user: a column of whole numbers; a sequence has samples of one user.
      time: a column of numbers; a sequence has samples of earlier times only, not of
        the same time.
      sequences: for each sequence, the column whose past it is.
      length: largest number of events of a sequence.
    """

    user: str
    time: str
    sequences: Mapping[str, str]
    length: int

    def hashes(self, samples: pa.Table) -> np.ndarray:
        """Returns the uint64 hash of the user of each sample."""
        users = samples[self.user].to_numpy().astype(np.int64).view(np.uint64)
        return splitmix64(users * GOLDEN_GAMMA)

    def by_hash(self, samples: pa.Table) -> pa.Table:
        """Orders samples by their users' hashes; those of a user keep their order."""
        return samples.take(np.argsort(self.hashes(samples), kind="stable"))

    def add_to(self, samples: pa.Table) -> pa.Table:
        """Orders all samples of some users by user and time, and adds their sequences.

        A sequence is a list, the latest event at its end. Samples of one user and time
        keep their order.
        """
        user, time = samples[self.user].to_numpy(), samples[self.time].to_numpy()
        order = np.lexsort([time, user])
        samples = samples.take(order)
        user, time = user[order], time[order]
        new_user = np.diff(user, prepend=user[:1] - 1) != 0
        new_time = new_user | (np.diff(time, prepend=time[:1]) != 0)
        # Events end before the first sample of this time, and begin with the user's.
        ends = _latest(new_time)
        starts = np.maximum(_latest(new_user), ends - self.length)
        offsets = np.append(0, np.cumsum(ends - starts))
        rows = np.repeat(starts - offsets[:-1], ends - starts)
        rows += np.arange(len(rows))
        for name, column in self.sequences.items():
            events = samples[column].combine_chunks().take(pa.array(rows))
            lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), events)
            samples = samples.append_column(name, lists)
        return samples


def _latest(is_start: np.ndarray) -> np.ndarray:
    """Returns for each position the last start up to it; the first one is a start."""
    return np.maximum.accumulate(np.where(is_start, np.arange(len(is_start)), 0))


def flat(values: pa.Array) -> pa.Array:
    """Returns the values of all bags, or the single values themselves."""
    return values.flatten() if pa.types.is_list(values.type) else values


def padded(
    values: pa.ListArray, ids: np.ndarray, hotness: int, at_end: bool = False
) -> np.ndarray:
    """Returns ``[bags, hotness]`` ids, padded with -1, from the ids of all values. A
    longer bag keeps its first ids.

    With ``at_end`` the padding is in front: the last event of every sequence comes
    last, and a longer sequence keeps its last events.
    """
    lengths = values.value_lengths().fill_null(0).to_numpy().astype(np.int64)[:, None]
    ends = np.cumsum(lengths)[:, None]
    column = np.arange(hotness)
    if at_end:
        filled, source = column >= hotness - lengths, ends - hotness + column
    else:
        filled, source = column < lengths, ends - lengths + column
    bags = np.full((len(values), hotness), -1, ids.dtype)
    bags[filled] = ids[source[filled]]
    return bags
