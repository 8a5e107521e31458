"""Decisions. Pure functions over values: no I/O, and no idea that databases exist."""
