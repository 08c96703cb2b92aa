"""Pallas GPU kernels for embedding tables. Knows nothing of embark_jax."""
