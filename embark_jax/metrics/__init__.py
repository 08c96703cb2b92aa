"""Metrics of predictions; one is a function and its entry beside it.

- ``pointwise``: log loss, AUC and accuracy of a data set, over all processes.
- ``ranking``: AUC, NDCG and recall by groups, such as users; HR@K and NDCG@K of the
  item that a user met, among all; and which metrics may decide.
- ``retrieval``: the nearest items of a vector, by a sharded index.
"""
