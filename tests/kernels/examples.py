"""Random lists, for tests of integer work."""

from hypothesis import settings
from hypothesis import strategies as st

few_examples = settings(max_examples=25)


def lists_of(elements):
    """Of few lengths: each is compiled for."""
    lengths = st.sampled_from([1, 12])
    return lengths.flatmap(lambda n: st.lists(elements, min_size=n, max_size=n))
