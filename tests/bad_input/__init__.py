"""Hundreds of kinds of bad input, in ``cases.yaml``, by the entrance they come through.

``test_bad_input.py`` enters each as a user would. ``__main__.py`` makes
``docs/pages/reference/bad_input.md``, which shows the messages.
"""
