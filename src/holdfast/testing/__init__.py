"""For people who write backends, or who want to see the promise kept: tests, faults, a checker.

`BackendConformance` is a pytest class: subclass it, say how your backend is opened, and every test
of the promise runs on it. It is loaded when it is asked for, so that the rest needs no pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.testing.conformance import BackendConformance

__all__ = ["BackendConformance"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the conformance suite when it is asked for."""
        if name == "BackendConformance":
            from holdfast.testing.conformance import BackendConformance  # noqa: PLC0415

            return BackendConformance
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
