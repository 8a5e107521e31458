"""Tables fit the terminal they are drawn on."""

import io

import pytest

from holdfast.cli.screen import Column, Pipe, fit

_COLUMNS = (
    Column("ID", whole=True),
    Column("KEY"),
    Column("STATE", whole=True),
    Column("ACTIVE", extra=True, whole=True),
    Column("TITLE"),
)
_NATURAL = (8, 120, 11, 9, 200)


@pytest.mark.parametrize("space", [200, 120, 80, 60, 40])
def test_a_table_fits_its_terminal(space: int) -> None:
    """However long the texts are, and the ids and states are never cut."""
    widths = fit(_COLUMNS, _NATURAL, space)
    assert sum(widths.values()) + 2 * (len(widths) - 1) <= space
    assert (widths[0], widths[2]) == (8, 11)


def test_a_narrow_terminal_has_fewer_columns() -> None:
    """The texts get the room that an extra column would take."""
    assert 3 in fit(_COLUMNS, _NATURAL, 80)
    assert 3 not in fit(_COLUMNS, _NATURAL, 60)


def test_columns_are_no_wider_than_they_need() -> None:
    """What a short text leaves over, a long one gets."""
    assert fit(_COLUMNS, (8, 10, 11, 9, 200), 100) == {0: 8, 1: 10, 2: 11, 3: 9, 4: 54}


def test_columns_of_wide_characters_are_aligned_in_a_pipe() -> None:
    """A wide character takes two cells, a combining mark none."""
    file = io.StringIO()
    Pipe(file).table([Column("A"), Column("B")], [("日本", "1"), ("e\u0301", "2"), ("abcd", "3")])
    assert file.getvalue() == "A     B\n日本  1\ne\u0301     2\nabcd  3\n"
