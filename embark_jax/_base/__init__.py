"""Shared ground: users' errors, the base of configs and its checks, YAML, files."""
