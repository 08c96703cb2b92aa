"""Hundreds of kinds of bad input, by the entrance through which they come.

``test_bad_input.py`` tries each; ``docs/pages/reference/bad_input.md``, which
``__main__.py`` makes, shows the messages.
"""

from tests.bad_input import api, batches
from tests.bad_input.case import Case
from tests.bad_input.commands import read_cases

ENTRANCES: dict[str, list[Case]] = {
    **read_cases(),
    **api.ENTRANCES,
    **batches.ENTRANCES,
}
