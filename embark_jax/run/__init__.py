"""Runs: a config becomes a trained model in a folder. ``train.py`` shows all of one."""
