"""Data sets as users download them, to the form that training reads."""
