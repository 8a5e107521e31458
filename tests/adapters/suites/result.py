"""What running a framework's own tests against an adapter has shown."""

from __future__ import annotations

import msgspec


class SuiteResult(msgspec.Struct, frozen=True):
    """Counts of a suite, the failures that are expected with their reasons, and the others.

    `name` says which tests they are, `own` how many pass with the framework's own store, if that
    can be counted.
    """

    passed: int
    total: int
    expected_failures: dict[str, str] = {}
    unexpected: tuple[str, ...] = ()
    name: str = ""
    own: int | None = None
