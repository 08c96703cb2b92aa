"""Sizes by which plain XLA's operations choose; cost models read them without JAX."""

COLUMNS_AT_ONCE = 16
"""Rows of a bag that an iteration of a loop on CPU adds, or one gather elsewhere; their
sum stays in registers."""
TERMS_WORTH_SORTING = 2
"""Terms per sum from which a GPU sorts them, so that it reads and writes each sum once:
with about one, sorting costs more bytes than it saves, and it changes what XLA
schedules beside the exchanges."""
