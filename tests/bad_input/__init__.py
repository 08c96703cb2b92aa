"""Hundreds of kinds of bad input, in ``cases.yaml``, by the entrance they come through.

``test_bad_input.py`` tries each; ``docs/pages/reference/bad_input.md``, which
``__main__.py`` makes, shows the messages.
"""
