"""The hidden command `__complete`, which the shells' completion scripts call on Tab.

Completion must be harmless: the store is opened read-only and never created, and on any error there
are no completions instead of an error message in the middle of a prompt. Names with invisible
characters, or with a `-` at the beginning, are not offered; their sessions are offered by id.

Zsh and fish pass words, the last one as it was typed, and quote the completions themselves. Bash
passes the line up to the cursor, and replaces what follows the last quote or break character; so
the line is split here as bash does, and a completion is only that part, quoted for its context.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import click
from click.shell_completion import CompletionItem, ShellComplete

import holdfast
from holdfast.cli.output.sanitize import sanitize
from holdfast.cli.program import program
from holdfast.cli.store_access import open_readonly
from holdfast.errors import HoldfastError
from holdfast.operations import refs
from holdfast.values import SessionInfo

_SPECIAL_PREFIX: Final = "@"
_BREAK_BEFORE: Final = "$@"  # bash breaks words before these, not after them
_MAX_SESSIONS: Final = 100  # sessions
_MAX_IDS: Final = 20
_MIN_ID_CHARS: Final = 2  # characters: fewer match by chance
_NEEDS_BACKSLASH: Final = re.compile(r"[^\w@%+=:,./-]", re.ASCII)
_IN_DOUBLE_QUOTES: Final = re.compile(r'[\\"$`]')


def print_completions(arguments: Sequence[str]) -> None:
    """Print completions for a shell's script: its arguments are the shell and what was typed."""
    try:
        lines = _lines(arguments)
    except (HoldfastError, click.ClickException, OSError):
        return
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _lines(arguments: Sequence[str]) -> list[str]:
    match arguments:
        case ["bash", line, breaks]:
            return _bash_lines(line, breaks)
        case ["zsh" | "fish", *before, last]:
            return _word_lines(before, last)
        case _:
            raise click.UsageError("This is for the scripts of `holdfast completion`.")


def _word_lines(before: list[str], last: str) -> list[str]:
    items = _complete(before, split(last)[-1].text)
    return [_kind(items), *(f"{item.value}\t{_description(item)}" for item in _printable(items))]


def _bash_lines(line: str, breaks: str) -> list[str]:
    *before, last = split(line, breaks)
    items = _complete([word.text for word in before[1:]], last.text)
    return [
        _kind(items),
        *(_quoted(item.value[last.start :], last.quote) for item in _printable(items)),
    ]


def _complete(before: list[str], last: str) -> list[CompletionItem[str]]:
    return ShellComplete(program, {}, "holdfast", "").get_completions(before, last)


def _kind(items: Sequence[CompletionItem[str]]) -> str:
    return "files" if any(item.type in {"file", "dir"} for item in items) else "words"


def _printable(items: Sequence[CompletionItem[str]]) -> Iterator[CompletionItem[str]]:
    return (i for i in items if i.type == "plain" and i.value and sanitize(i.value) == i.value)


def _description(item: CompletionItem[str]) -> str:
    return sanitize(item.help or "")


# ----------------------------------------------------------------------------------------- sessions


def sessions(
    ctx: click.Context, incomplete: str, trashed: Sequence[bool]
) -> list[CompletionItem[str]]:
    """Return sessions whose key, title or id starts with `incomplete`.

    `trashed` lists which to include: False those outside the trash, True those in it.
    """
    store = ctx.params.get("store")
    url = os.path.expandvars(os.path.expanduser(store)) if store else None  # noqa: PTH111
    found: dict[str, str] = {}
    with open_readonly(url) as opened:
        for side in trashed:
            page = opened.sessions(text=incomplete or None, trashed=side, limit=_MAX_SESSIONS)
            found |= {name: about for info in page for name, about in _names(info, incomplete)}
            found |= dict(_ids(opened, incomplete, trashed=side))
        if incomplete.startswith(_SPECIAL_PREFIX) and False in trashed:
            found |= dict(_special_refs(opened, incomplete))
    return [CompletionItem(name, help=about) for name, about in found.items()]


def _names(info: SessionInfo, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a session that match; one name if nothing was typed yet."""
    about = info.title or info.preview or ""
    names = [name for name in (info.key, info.title) if name and _is_offered(name)]
    if not incomplete:
        yield (*names, info.id)[0], about
        return
    for name in names:
        if name.startswith(incomplete):
            yield name, about


def _is_offered(name: str) -> bool:
    """True if a name can be completed: one that begins with `-` would be taken for an option."""
    return sanitize(name) == name and not name.startswith("-") and not refs.is_builtin(name)


def _special_refs(opened: holdfast.Store, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the special references (`@latest`) that currently resolve to a session."""
    recent, pinned = opened.sessions(limit=_MAX_SESSIONS), opened.sessions(pinned=True, limit=2)
    names = {}
    if recent:
        names[refs.LATEST] = _session_description(recent.items[0])
    if pinned:
        several = f"{len(pinned)} or more are pinned"
        names[refs.PINNED] = several if len(pinned) > 1 else _session_description(pinned.items[0])
    for info in recent:
        if info.scope:
            names.setdefault(f"{refs.LATEST}:{info.scope}", _session_description(info))
    return ((name, about) for name, about in names.items() if name.startswith(incomplete))


def _session_description(info: SessionInfo) -> str:
    return info.title or info.preview or info.key or ""


def _ids(opened: holdfast.Store, incomplete: str, *, trashed: bool) -> Iterator[tuple[str, str]]:
    if len(incomplete) < _MIN_ID_CHARS:
        return
    found = opened.backend.read(
        lambda s: s.sessions("id_prefix", incomplete, trashed=trashed, limit=_MAX_IDS)
    )
    yield from ((row.id, row.title or row.key or "") for row in found)


# -------------------------------------------------------------------------------- a line of a shell


class Word(NamedTuple):
    """A word, the quote that is open at its end, and the index from which bash replaces it."""

    text: str
    quote: str = ""
    start: int = 0


def split(line: str, breaks: str = "") -> list[Word]:
    """Split a line as a shell does; the last word, maybe empty, is the one at the cursor."""
    words: list[Word] = []
    text, quote, start, begun, escaped = "", "", 0, False, False
    for character in line:
        if escaped:
            text, escaped = text + character, False
        elif character == "\\" and quote != "'":
            begun = escaped = True
        elif quote:
            text, quote = (text, "") if character == quote else (text + character, quote)
        elif character in "'\"":
            quote, start, begun = character, len(text), True
        elif character.isspace():
            words += [Word(text)] if begun else []
            text, start, begun = "", 0, False
        else:
            text, begun = text + character, True
            start = len(text) - (character in _BREAK_BEFORE) if character in breaks else start
    return [*words, Word(text, quote, start)]


def _quoted(text: str, quote: str) -> str:
    """Return the text escaped for a shell in which this quote is open."""
    if quote == "'":
        return text.replace("'", r"'\''")
    if quote == '"':
        return _IN_DOUBLE_QUOTES.sub(r"\\\g<0>", text)
    return _NEEDS_BACKSLASH.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return f"\\{character}" if character.isascii() else character
