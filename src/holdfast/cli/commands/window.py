"""`holdfast window`: show what a model would be sent, and what would be left out.

The output is decoded from the payload itself, so it shows what the provider receives rather than
what is stored. Calls, results and thinking take a line each and long texts are folded; `--json`
prints the payload exactly.
"""

from __future__ import annotations

from typing import Final

import click

from holdfast.cli import params
from holdfast.cli.command import command
from holdfast.cli.output.humanize import count, shorten, size
from holdfast.cli.output.json_output import print_document, to_ascii_json
from holdfast.cli.output.pager import paged
from holdfast.cli.output.screen import Screen, Span
from holdfast.cli.output.transcript import MAX_SHOWN_PARTS, draw_rest
from holdfast.cli.store_access import open_readonly
from holdfast.formats.registry import PROVIDERS, Format, format_of
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Provider,
    Raw,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Window,
    is_original,
)

_ROLES: Final = {"user": "bold blue", "assistant": "bold green"}
_MAX_LINES: Final = 12
_MAX_CHARS: Final = 1_000
# Keys by which `formats` store provider fields that our parts lack; they have no text to show.
_PASSTHROUGH_KEYS: Final = frozenset({"fields", "part"})


@command(
    "holdfast window support-42",
    "holdfast window support-42 --provider anthropic --max-tokens 32000 --reserve 4000",
    "holdfast window support-42 --max-messages 20 --keep-first-user",
    'holdfast window support-42 --system "You are the parcel desk." --timestamps',
    "holdfast window support-42 --provider gemini --json",
)
@click.argument("ref")
@click.option(
    "--provider",
    "-p",
    type=click.Choice(PROVIDERS),
    default="openai",
    show_default=True,
    help="The provider whose rules and format to use.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="At most about this many tokens.")
@click.option(
    "--reserve", type=click.IntRange(min=0), help="How many of them to reserve for the reply."
)
@click.option("--max-messages", type=click.IntRange(min=1), help="At most this many messages.")
@click.option("--keep-first-user", is_flag=True, help="Always keep the user's first message.")
@click.option(
    "--system", type=params.UTF8_TEXT, metavar="TEXT", help="System instructions to include."
)
@click.option("--timestamps", is_flag=True, help="Add the time to the user's messages.")
@click.option(
    "--pager/--no-pager", default=True, help="Page what is longer than the screen, or not."
)
def window(
    *,
    ref: str,
    provider: Provider,
    max_tokens: int | None,
    reserve: int | None,
    max_messages: int | None,
    keep_first_user: bool,
    system: str | None,
    timestamps: bool,
    pager: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Show what a model would be sent.

    It prints as much of the newest history as fits, valid for the provider; then what was left out
    and why. Nothing is sent, and the store is not changed. Long texts are folded: --json prints the
    exact payload, and the ids of the stored messages that each item is made of.
    """
    if reserve is not None and max_tokens is None:
        raise click.UsageError("--reserve is a part of --max-tokens: give both.")
    with open_readonly(store) as opened:
        made = opened.get(ref).window(
            provider=provider,
            max_tokens=max_tokens,
            reserve=reserve or 0,
            max_messages=max_messages,
            keep_first_user=keep_first_user,
            system=system,
            timestamps=timestamps,
        )
    if as_json:
        print_document(_payload(made))
        return
    with paged(wanted=pager) as out:
        draw(out, made)


def _payload(made: Window) -> dict[str, object]:
    return {
        "provider": made.provider,
        "system": made.system,
        "messages": made.messages,
        "sources": made.sources,
        "tokens": made.tokens,
        "left_out": made.left_out,
        "notes": made.notes,
    }


# -------------------------------------------------------------------------------------- to draw


def draw(out: Screen, made: Window, *, whole: str = "--json has them") -> None:
    """Print what is sent, then the totals and notes; `whole` says where folded texts are."""
    _WindowPrinter(out, whole).draw(made)


class _WindowPrinter:
    """Prints one window."""

    def __init__(self, out: Screen, whole: str) -> None:
        self._out = out
        self._whole = whole
        self._names: dict[str, str] = {}
        self._role = ""
        self._parts = 0  # under the last heading

    def draw(self, made: Window) -> None:
        """Print what is sent, then the totals and notes."""
        format = format_of(made.provider)
        if made.system is not None:
            self._draw_heading("system")
            self._draw_text(_system_text(made.system, format))
        for item in made.messages:
            self._draw_message(format.decode(item))
        self._end_message()
        self._draw_facts(made, format.item_noun)

    def _draw_heading(self, role: str, name: str | None = None) -> None:
        self._end_message()
        self._role, self._parts = role, 0
        spans: list[Span] = [(role, _ROLES.get(role, "bold"))]
        self._out.line(*spans, *([(f" · {name}", "dim")] if name else []))

    def _end_message(self) -> None:
        if self._role:
            draw_rest(self._out, self._parts)
            self._out.line()

    def _draw_message(self, message: Message) -> None:
        self._names |= {call.id: call.name for call in message.tool_calls}
        # Some providers have a message per call and result; they share one heading here.
        if message.role != self._role or not _has_only_tools(message):
            self._draw_heading(message.role, message.name)
        for part in message.parts:
            self._parts += 1
            if self._parts <= MAX_SHOWN_PARTS:
                self._draw_part(part)

    def _draw_part(self, part: Part) -> None:
        if isinstance(part, Text):
            self._draw_text(part.text)
        elif isinstance(part, Thinking):
            self._out.truncated_line(("  thinking  ", "dim italic"), (shorten(part.text), "dim"))
        elif isinstance(part, ToolCall):
            self._draw_call(part)
        elif isinstance(part, ToolResult):
            self._draw_result(part)
        elif isinstance(part, File):
            self._out.truncated_line("  ", *_file(part))
        elif not _is_passthrough(part):
            self._out.truncated_line(
                ("  item  ", "dim"), (shorten(to_ascii_json(_provider_data(part))), "dim")
            )

    def _draw_text(self, text: str) -> None:
        shown = fold_text(text)
        self._out.body(shown)
        if len(shown) < len(text):
            more = count(len(text) - len(shown), "more character")
            self._out.line((f"  … {more}; {self._whole}", "dim"))

    def _draw_call(self, call: ToolCall) -> None:
        arguments = (
            call.arguments if isinstance(call.arguments, str) else to_ascii_json(call.arguments)
        )
        self._out.truncated_line(
            ("  → ", "dim"), (call.name, "bold"), (f"  {shorten(arguments)}", "dim")
        )

    def _draw_result(self, result: ToolResult) -> None:
        name = result.name or self._names.get(result.call_id) or result.call_id
        failed: list[Span] = [("failed  ", "red")] if result.error else []
        files = () if isinstance(result.content, str) else result.content
        attached = [span for part in files if isinstance(part, File) for span in _file(part)]
        shown = shorten(result.text)
        self._out.truncated_line(
            ("  ← ", "dim"), f"{name}  ", *failed, (f"{shown}  ", "dim"), *attached
        )

    # -------------------------------------------------------------------------- totals and notes

    def _draw_facts(self, made: Window, noun: str) -> None:
        out = self._out
        amount = count(len(made.messages), noun)
        out.line(
            (amount if made.messages else "Nothing to send", "bold"),
            f" for {made.provider}, about {count(made.tokens, 'token')}",
        )
        for left in made.left_out:
            out.fact("  left out  ", f"{left.count:,} {left.why}")
        for note in made.notes:
            out.fact("  note      ", note)


def fold_text(text: str) -> str:
    """Return the beginning of a text: its first lines, at most a number of characters."""
    lines = text.split("\n", _MAX_LINES)
    shown = "\n".join(lines[:_MAX_LINES])
    return shown if len(shown) <= _MAX_CHARS else shown[:_MAX_CHARS]


def _system_text(system: JSON, format: Format) -> str:
    """Return the text of a provider's system instructions."""
    return format.decode(system).text if isinstance(system, dict) else str(system)


def _file(file: File) -> list[Span]:
    kept = None if file.data is None else size(len(file.data))
    known = " · ".join(fact for fact in (file.mime, kept) if fact)
    return [("file ", "dim"), (file.name or "unnamed", "bold"), (f"  {known}  ", "dim")]


def _has_only_tools(message: Message) -> bool:
    shown = [part for part in message.parts if not isinstance(part, Raw)]
    return bool(shown) and all(isinstance(part, ToolCall | ToolResult) for part in shown)


def _provider_data(part: Raw) -> JSON:
    """Return provider-specific data as it is sent."""
    match part.data:
        case {"item": inner} | {"content": inner} | {"call": inner}:
            return inner
    return part.data


def _is_passthrough(part: Raw) -> bool:
    if is_original(part):
        return True
    return isinstance(part.data, dict) and bool(_PASSTHROUGH_KEYS & part.data.keys())
