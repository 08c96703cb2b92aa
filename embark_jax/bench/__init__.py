"""Measures this machine: steps, the input, and the figures of its fleet."""
