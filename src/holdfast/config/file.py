"""Read one configuration file: validate each key by itself, and collect all problems.

A problem names the file, the key, and the line if it is cheap to find. It never shows a value: what
was put under a wrong key may be a secret.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final

import msgspec

from holdfast.config import schema

_MAX_FILE_BYTES: Final = 256 * 1024  # bytes
_MAX_DOTS: Final = 100  # In a line: reading a key takes time with the square of its dots.
_MAX_PRICE: Final = 1_000_000
_EXPECTED_PRICES: Final = "expected input and output, numbers from 0 to 1,000,000"
_HEADER: Final = re.compile(r"\s*\[+(?P<name>[^\[\]]*)\]")
_NOT_A_NAME: Final = re.compile(r"[\s\"']")
_SECRET: Final = re.compile(r"(api_?)?key|token|secret|password", re.IGNORECASE)


class ConfigProblem(msgspec.Struct, frozen=True, kw_only=True):
    """An invalid setting; `where` is a file, a variable or an option."""

    where: str
    what: str
    key: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        """Return the problem as one line."""
        where = self.where if self.line is None else f"{self.where}, line {self.line}"
        return f"{where}: {self.what}"


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file: the valid values by their keys' full names, and the problems."""

    path: Path
    values: dict[str, object] = {}
    lines: dict[str, int] = {}
    problems: tuple[ConfigProblem, ...] = ()


def read(path: Path) -> ConfigFile:
    """Read a file; errors are among the problems of the result."""
    try:
        text = _text(path)
        document = tomllib.loads(text)
    except (OSError, ValueError) as error:  # UnicodeDecodeError and TOMLDecodeError are values
        return _unreadable(path, _describe(error))
    except RecursionError:
        return _unreadable(path, "it is nested too deep")
    return _Validator(path, text).read(document)


def convert(key: str, value: object) -> object:
    """Convert a value to the type of its key; raise `ValueError` with what was expected."""
    kind = schema.all_keys()[key].type
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise ValueError(f"{key}: expected {schema.describe_type(kind)}") from None


def _unreadable(path: Path, why: str) -> ConfigFile:
    return ConfigFile(path=path, problems=(ConfigProblem(where=str(path), what=why),))


def _text(path: Path) -> str:
    """Read a regular file of limited size; reading a pipe or a device could block for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {_MAX_FILE_BYTES:,} bytes")
    text = data.decode("utf-8-sig")
    if any(line.count(".") > _MAX_DOTS for line in text.split("\n")):
        raise ValueError(f"it has a line with more than {_MAX_DOTS} dots")
    return text


def _describe(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start + 1})"
    return (
        f"it is not valid TOML: {error}"
        if isinstance(error, tomllib.TOMLDecodeError)
        else str(error)
    )


class _Validator:
    """Validates the content of one file."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = dict(_line_numbers(text))
        self._problems: list[ConfigProblem] = []
        self._values: dict[str, object] = {}

    def read(self, document: Mapping[str, object]) -> ConfigFile:
        """Validate every key of the document."""
        tables = schema.tables()
        for name, value in document.items():
            if name == "prices":
                self._prices(value)
            elif name in tables:
                self._table(name, value)
            elif name in schema.all_keys():
                self._set(name, value)
            else:
                self._add_unknown_key(name, [*tables, "prices", "trusted"])
        return ConfigFile(
            path=self._path,
            values=self._values,
            lines={key: line for key, line in self._lines.items() if key in self._values},
            problems=tuple(self._problems),
        )

    def _table(self, table: str, content: object) -> None:
        if not isinstance(content, dict):
            self._add_problem(table, f"{table} must be a table: [{table}]")
            return
        known = schema.all_keys()
        for name, value in content.items():
            key = f"{table}.{name}"
            if key in known:
                self._set(key, value)
            else:
                inside = [k.partition(".")[2] for k in known if k.startswith(f"{table}.")]
                self._add_unknown_key(key, inside)

    def _set(self, key: str, value: object) -> None:
        try:
            self._values[key] = convert(key, value)
        except ValueError as error:
            self._add_problem(key, str(error))

    def _prices(self, content: object) -> None:
        if not isinstance(content, dict):
            self._add_problem("prices", 'prices must contain tables: [prices."MODEL"]')
            return
        good = {name: table for name, one in content.items() if (table := self._price(name, one))}
        if good:
            self._values["prices"] = good

    def _price(self, model: str, content: object) -> schema.PriceTable | None:
        key = f"prices.{model}"
        if not isinstance(content, dict):
            self._add_problem(key, f'{key} must be a table: [prices."{model}"]')
            return None
        known = schema.price_keys()
        for name in content.keys() - known.keys():
            self._add_unknown_key(f"{key}.{name}", known)
        try:
            table = msgspec.convert(
                {name: content[name] for name in known if name in content}, schema.PriceTable
            )
        except msgspec.ValidationError:
            self._add_problem(key, f"{key}: {_EXPECTED_PRICES}")
            return None
        if not all(_is_a_price(getattr(table, name)) for name in known):
            self._add_problem(key, f"{key}: {_EXPECTED_PRICES}")
            return None
        return table

    def _add_unknown_key(self, key: str, known: Iterable[str]) -> None:
        last = key.rpartition(".")[2]
        near = difflib.get_close_matches(last, list(known), n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; valid keys: {', '.join(known)}"
        if _SECRET.fullmatch(last):
            hint = "; API keys do not belong here: set api_key_env to the variable that holds one"
        self._add_problem(key, f"unknown key {key}{hint}")

    def _add_problem(self, key: str, what: str) -> None:
        line = self._lines.get(key)
        self._problems.append(ConfigProblem(where=str(self._path), what=what, key=key, line=line))


def _is_a_price(value: Decimal | None) -> bool:
    return value is None or (value.is_finite() and 0 <= value <= _MAX_PRICE)


def _line_numbers(text: str) -> Iterator[tuple[str, int]]:
    """Return the line of each key, as far as it can be found without parsing TOML."""
    table: Sequence[str] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = (_NOT_A_NAME.sub("", header["name"]),)
            yield table[0], number
            continue
        name, is_setting, _ = line.partition("=")
        if is_setting and "#" not in name:
            yield ".".join((*table, _NOT_A_NAME.sub("", name))), number
