"""Statements by name, read from `statements.sql`."""

from __future__ import annotations

from typing import Final

from holdfast.storage.sql_files import load_statements

SQL: Final = load_statements(__package__)
