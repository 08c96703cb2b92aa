"""Shared ground: errors that users can mend, the base of configs, safe YAML, files."""
