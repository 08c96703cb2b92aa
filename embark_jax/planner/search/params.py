"""How much the search tries. Larger counts take longer, and hardly any value changes
the steps of published models by more than 2 %. What each gains is in
``experiments/planners/README.md``.
"""

from __future__ import annotations

HOT_SHARES: tuple[float, ...] = (0.5, 0.65, 0.8, 0.9)
"""Shares of a table's ids that the hot rows of candidates take."""
LARGE_MODEL = 64
"""Number of groups of alike tables above which a model is large: only the start with
the lowest bound is searched."""
CROWDING: tuple[float, ...] = (0.0, 0.5, 1.0, 0.25, 0.75, 1.5, 0.375, 0.625)
"""Shares of the largest shard that are added to peaks, of the relaxations whose
roundings are improved; 0 is the relaxation itself."""
ROUNDED_GROUPS, ROUNDINGS, LEAF_ROUNDINGS = 120, 2, 2
"""Groups of alike tables in all roundings of a start together, but at least so many
roundings; and roundings of a leaf."""
BRANCHES, BRANCHED = 60, 600_000
"""Most programs of branch and bound, and most candidates in all of them together."""
LEAVES, LEAF_WORK = 6, 10_000
"""Most leaves that are searched, and most tables times groups in all of them."""
REINSERTED: tuple[float, ...] = (0.05, 0.1, 0.3)
"""Shares of the tables that a round takes out together."""
REINSERTED_POWERS: tuple[int, ...] = (16, 64, 256)
"""Powers of the smooth cost by which they are put in anew."""
IMPROVED = 4
"""Assignments of different starts whose tables are taken out together."""
REINSERTIONS, INSERTION = 1.25e7, 2000
"""Candidates on devices that all rounds try together; and as how many each insertion
counts, whatever it tries."""
ROUNDS = 12
"""Most rounds for each table."""
CLOSE = 1e-3
"""Share of the bound within which a plan is fast enough to end the search."""
LONGER = 0.006
"""Share by which a round may make steps longer."""
TRIED = 20
"""Number of candidates of a group that moves choose among: the best ones of the
relaxation."""
LAST_TRIED = 40
"""Number of candidates of a group that the last moves, of the best plans, choose
among."""
POWERS: tuple[int, ...] = (8, 16, 64, 256)
"""Powers of the smooth costs by which tables are moved, one pass for each; the
first is also that by which they are inserted at first. The last is within 128 ** (1
/ 256) = 2 % of the maximum over 128 devices."""
FAILURES = 2
"""Failed moves of alike tables in a pass after which the others stay."""
MEMORY_SHARES: tuple[float, ...] = (0.6, 0.3, 0.15)
"""Shares of a device's memory within which plans are searched, too."""
SEARCHED_TABLES = 100
"""Most tables of a model that is searched within several shares."""
MEMORY_PRICE = 0.1
"""Price of all memory, in step times, where no plan fits without one; it is four
times as high from search to search."""
MEMORY_SEARCHES = 8
"""Largest number of searches, the first without a price: the last price is 400 step
times."""
LIGHTER_MEMORY = 0.05
"""A plan is advised that takes at least so much less memory, as a share, and hardly
longer."""
LIGHTER_PRICE = 0.3
"""Price of all memory, in step times, at which such a plan is looked for."""
TOLERANCE = 3e-5
"""Share of the optimum by which a row of the relaxation must be broken to be
added."""
SLOT_BATCHES = 2.0
"""Smallest number of slots of a cached table, as a multiple of the rows that a
batch is expected to ask for."""
SLOT_RATIO = 1.5
"""Ratio of the numbers of slots that are tried, from the fewest to all rows."""
