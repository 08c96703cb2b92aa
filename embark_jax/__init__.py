"""embark_jax: sharded embedding tables and recommendation models in JAX."""
