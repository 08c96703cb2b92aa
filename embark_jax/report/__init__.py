"""Reports show plans and runs: pages, figures, records, the terminal.

- **decision**: where a table lives, or several tables that are alike.
- **critical phase**: how long a phase lasts, until its fullest device is done.
- **record**: a plan as JSON for other programs.
"""
