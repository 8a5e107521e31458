"""Conversion between messages and each provider's message format. No I/O, no provider SDK."""
