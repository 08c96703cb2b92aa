"""Metrics of predictions: pointwise, by ranking, streaming AUC, retrieval."""
