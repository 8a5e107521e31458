"""Statements by name, read from `statements.sql`."""

from __future__ import annotations

from typing import Final

from holdfast.backends.statements import load

SQL: Final = load(__package__)
