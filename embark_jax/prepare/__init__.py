"""Prepares data sets, as users download them, for training.

``run`` shows all of it: samples, count, encode, by queries of DuckDB (``sql``). A
``recipe`` says what a data set is: raw files, their columns, and SQL that makes samples
of them. One file each has those of ``avazu``, ``criteo``, ``taobao`` and ``yambda``;
``own_files`` has those of files whose ``columns`` the user describes, as ``movielens``
does.

- ``raw_files``, ``values``, ``reading``: text or Parquet becomes a table of typed
  values, by one rule for what values are the same. ``samples``: tables of all files,
  and the split of each sample.
- ``count``, ``vocabulary``, ``numbers``: ids and transforms; those of earlier data are
  kept.
- ``splits``, ``histories``: which samples are held out, and what each sees of the
  earlier events of its user.
- ``negatives``: items that are drawn beside those of positive samples.
- ``encode``: files of samples; ``raw_rows`` makes the same of rows that are scored
  later.

The room imports ``data``, which reads what is made here, and never the other way.
"""
