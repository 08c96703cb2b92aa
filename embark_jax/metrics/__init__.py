"""Metrics of predictions; one is a function and its entry beside it (``metric``).

- ``pointwise``: log loss, AUC and accuracy of a data set, over all processes.
- ``ranking``: AUC, NDCG, recall and reciprocal rank by groups, such as users; HR@K and
  NDCG@K of the item that a user met, among all.
- ``retrieval``: the nearest items of a vector, by a sharded index.
- ``deciding``: the metrics that may decide between steps and trials.
"""
