"""Prepares data sets, as users download them, for training."""
