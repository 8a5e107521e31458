"""Tests for backend authors, and fault injection for anyone who wants to check the promise.

`BackendConformance` is a pytest class: subclass it, define how your backend is opened, and every
test of the promise runs on it. It is imported on first access, so that the rest needs no pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.testing.conformance import BackendConformance

__all__ = ["BackendConformance"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the conformance suite on first access."""
        if name == "BackendConformance":
            from holdfast.testing.conformance import BackendConformance  # noqa: PLC0415

            return BackendConformance
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
