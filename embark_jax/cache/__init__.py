"""Cached and dynamic tables: slots on devices, and the rows that lie elsewhere."""
