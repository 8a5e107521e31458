"""Storage backends. Each does the I/O behind the seam of `base`; none decides what is stored."""
