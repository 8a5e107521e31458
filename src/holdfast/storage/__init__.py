"""Storage backends: each does the I/O behind `protocol`; none decides what is stored."""
