"""The page on configuration describes exactly the keys of the schema, in its words."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.output.json_output import to_ascii_json
from holdfast.config import loader, schema
from holdfast.config.file import read
from holdfast.config.schema import ConfigKey

_PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `(?P<key>\w+)` \|.*$", re.MULTILINE)
_TOML = re.compile(r"^```toml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def row(key: ConfigKey) -> str:
    """Return the row that the page has for a key."""
    name = key.name.rpartition(".")[2]
    default = "" if key.default in (None, msgspec.NODEFAULT) else f"`{_written(key.default)}`"
    return f"| `{name}` | {default} | {schema.describe_type(key.type)} | {key.description} |"


def _written(value: object) -> str:
    return to_ascii_json(list(value)) if isinstance(value, tuple) else to_ascii_json(value)


def _section(title: str) -> str:
    """Return the text of a section."""
    [_, behind] = _PAGE.split(f"\n### {title}\n")
    return re.split(r"^#", behind, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("table", schema.tables())
def test_a_table_is_told_as_it_is(table: str) -> None:
    section = _section(f"[{table}]")
    keys = [key for key in schema.all_keys().values() if key.name.startswith(f"{table}.")]
    assert schema.tables()[table] in section
    assert [found[0] for found in _ROW.finditer(section)] == [row(key) for key in keys]


def test_prices_are_told_as_they_are() -> None:
    rows = [found[0] for found in _ROW.finditer(_section('[prices."MODEL"]'))]
    assert rows == [row(key) for key in schema.price_keys().values()]


def test_trust_is_told_as_it_is() -> None:
    section = _section("What a workspace may set")
    listed = set(re.findall(r"^- `([\w.]+)`", section, re.MULTILINE))
    assert listed == schema.all_keys().keys() - schema.WORKSPACE_RIGHTS.keys() - schema.USER_ONLY
    rows = dict(re.findall(r"^\| (set|lower|choose).*? \| (`.*`) \|$", section, re.MULTILINE))
    rights = {key: right for right, keys in rows.items() for key in re.findall(r"[\w.]+", keys)}
    assert rights == {**schema.WORKSPACE_RIGHTS, "model.name": "choose"}
    assert all(f"`{key}`" in section for key in schema.USER_ONLY)


def test_variables_are_told_as_they_are() -> None:
    rows = dict(re.findall(r"^\| `\$(\w+)` \| `?([^|`]+)`? \|", _PAGE, re.MULTILINE))
    named = {name: key for name, key in rows.items() if key in schema.all_keys()}
    assert named == loader.VARIABLES


@pytest.mark.parametrize("text", [found["text"] for found in _TOML.finditer(_PAGE)])
def test_every_example_can_be_used(text: str, tmp_path: Path) -> None:
    assert tomllib.loads(text)
    file = tmp_path / "holdfast.toml"
    file.write_text(text)
    assert read(file).problems == ()


def test_there_are_examples() -> None:
    assert len(_TOML.findall(_PAGE)) >= 3
