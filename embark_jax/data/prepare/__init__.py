"""Prepares data sets, as users download them, for training.

``run`` shows all of it. A ``recipe`` says what a data set is. One file each has those
of ``avazu``, ``criteo`` and ``taobao``; ``own_files`` has those of a user's own files,
whose ``columns`` the user describes; ``engine_files`` has what engines such as Spark
write. In the order of the stages:

- ``chunks``, ``delimited``: chunks of text become typed columns.
- ``parsing``: recipes make samples of them; ``values`` says which values are the same.
- ``user_groups``, ``sequences``: sequences of what a user met before.
- ``counting``, ``vocabulary``, ``numbers``, ``column_report``: ids, transforms, report.
- ``extension``: rows and transforms of earlier data are kept.
- ``encoding``: records; ``raw_rows`` makes the same of rows that are scored later.
"""
