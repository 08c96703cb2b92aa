"""Prepares data sets, as users download them, for training.

``run`` shows all of it: read, split, count, encode, by queries of DuckDB (``sql``). A
``recipe`` says what a data set is: raw files, their columns, and a query that makes
samples of them. One file each has those of ``avazu``, ``criteo`` and ``taobao``;
``own_files`` has those of a user's own files, whose ``columns`` the user describes. In
the order of the stages:

- ``raw_files``, ``values``, ``samples``: lines or columns become typed samples, by one
  rule for what values are the same. ``history``: what a user met before each sample.
- ``count``, ``vocabulary``, ``numbers``, ``column_report``: ids, transforms, report.
  ``elsewhere``: values that an engine such as Spark counted.
- ``extension``: rows and transforms of earlier data are kept.
- ``encode``: records; ``raw_rows`` makes the same of rows that are scored later.
"""
