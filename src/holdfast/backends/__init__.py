"""Databases. Each does dull I/O behind the seam of `base`; none makes a decision."""
