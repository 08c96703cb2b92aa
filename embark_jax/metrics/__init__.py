"""Metrics of predictions.

- ``pointwise``: log loss, AUC and accuracy of a data set, over all processes.
- ``ranking``: AUC, NDCG, recall and reciprocal rank by groups, such as users.
- ``retrieval``: the nearest items of a vector, by a sharded index; HR@K and NDCG@K.
"""
