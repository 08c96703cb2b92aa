"""Reports show plans and runs: pages, figures, records, the terminal.

- **decision**: where a table lives, or several tables that are alike.
- **critical phase**: how long a phase lasts, until its fullest device is done.
- **record**: a plan as JSON for other programs.

Importing this room makes a plan show itself where it is printed.
"""

import pkgutil

from embark_jax.plans.plan import Plan

SHOWN = {
    "__rich__": "terminal:Report",
    "__str__": "terminal:as_text",
    "_repr_html_": "page:plan_html",
}
"""Methods of a plan, and what shows it; each is imported when it is asked for."""


def _shows(place: str):
    return lambda plan: pkgutil.resolve_name(f"{__name__}.{place}")(plan)


for _method, _place in SHOWN.items():
    setattr(Plan, _method, _shows(_place))
