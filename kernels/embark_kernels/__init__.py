"""Pallas GPU kernels for embedding tables. Knows nothing of embark_jax."""

from embark_kernels._availability import availability as availability
