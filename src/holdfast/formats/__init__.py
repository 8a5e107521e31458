"""Conversion between messages and each provider's message format. No I/O, no provider SDK."""

from holdfast.formats.originals import keep, kept, with_data

__all__ = ["keep", "kept", "with_data"]
