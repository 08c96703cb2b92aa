"""Measures this machine: kernels, steps, the input, and the figures of its fleet."""
