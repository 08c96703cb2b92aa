"""A hundred kinds of bad input, by the entrance through which they come.

``test_bad_input.py`` tries each; ``docs/pages/reference/bad_input.md``, which
``__main__.py`` makes, shows the messages.
"""

from tests.bad_input import api, batches, configs, data, plans, runs
from tests.bad_input.case import Case

ENTRANCES: dict[str, list[Case]] = {
    **configs.ENTRANCES,
    **plans.ENTRANCES,
    **data.ENTRANCES,
    **runs.ENTRANCES,
    **api.ENTRANCES,
    **batches.ENTRANCES,
}
