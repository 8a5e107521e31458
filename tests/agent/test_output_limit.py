"""Long outputs: stored completely, shown shortened, and never sent completely."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import File, Message, Store, Text, ToolCall
from holdfast.agent.tools import output_limit
from holdfast.agent.tools.output_limit import Piece, shorten
from holdfast.agent.tools.protocol import Output
from holdfast.agent.tools.session_tools import session_tools
from holdfast.codec import decode_text, sha256_hex
from holdfast.values import WHOLE_OUTPUT, Provider
from tests.agent.tools import Desk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db", durability="process") as opened:
        yield opened


def pieces(output: Output) -> tuple[Piece, ...]:
    assert not isinstance(output.content, str)
    return output.content


def whole(output: Output) -> File:
    return next(p for p in pieces(output) if isinstance(p, File) and p.mime == WHOLE_OUTPUT)


def texts(output: Output) -> list[str]:
    return [piece.text for piece in pieces(output) if isinstance(piece, Text)]


def test_what_fits_stays_as_it_is() -> None:
    for content in ("", "x" * 1000, (Text("a"), File(mime="image/png", data=b"x" * 9999))):
        output = Output(content, error=True)
        assert shorten(output, 1000) is output


def test_what_does_not_fit_is_kept_whole_and_shown_by_its_ends() -> None:
    text = "".join(f"line {n}\n" for n in range(1_000))
    short = shorten(Output(text, error=True), 1_000, name="run_command")
    head, note, tail = texts(short)
    assert short.error
    assert text.startswith(head)
    assert text.endswith(tail)
    assert head.endswith("\n")
    assert tail.startswith("line ")
    assert 800 <= len(head) + len(tail) <= 1_000
    kept = whole(short)
    assert kept.data == text.encode()
    assert kept.name == "output of run_command"
    assert note == (
        f"[… {len(text) - len(head) - len(tail):,} of {len(text):,} characters left out; "
        f'read_output(handle="{kept.sha256}", offset={len(head)}) reads them …]'
    )
    assert "read_output" not in texts(shorten(Output(text), 1_000, readable=False))[1]


def test_several_texts_are_one_output_and_other_things_stay() -> None:
    image = File(mime="image/png", data=b"x")
    short = shorten(Output((Text("a" * 600), image, Text("b" * 600))), 1_000)
    assert whole(short).data == b"a" * 600 + b"\n" + b"b" * 600
    assert image in pieces(short)


def test_a_text_file_is_text_too() -> None:
    """Some providers are sent such files whole."""
    file = File(name="a.txt", mime="text/plain", data=b"x" * 5_000)
    short = shorten(Output((file,)), 1_000)
    assert file not in pieces(short)
    assert whole(short).data == b"x" * 5_000
    small = File(mime="application/json", data=b"{}")
    assert shorten(Output((small,)), 1_000) == Output((Text("{}"),))


@given(st.text(min_size=250, max_size=2_000), st.integers(-5, 400))
def test_head_and_tail_and_what_is_read_between_are_the_output(text: str, limit: int) -> None:
    short = shorten(Output(text), limit)
    if short.content == text:
        assert len(text) <= max(limit, 200)
        return
    head, note, tail = texts(short)
    data = whole(short).data
    assert data is not None
    assert decode_text(bytes(data)) == text
    left_out = int(note.split()[1].replace(",", ""))
    assert len(head) + left_out + len(tail) == len(text)
    assert len(head) + len(tail) <= max(limit, 200)
    assert sha256_hex(bytes(data)) in note


def test_an_output_beyond_all_limits_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_limit, "MAX_STORED_BYTES", 1_001)
    short = shorten(Output("ü" * 2_000), 300)
    assert whole(short).data == ("ü" * 500).encode()  # Not half of a character.
    assert "the rest is lost" in texts(short)[1]


# ----------------------------------------------------------------------------------- in a store


@pytest.mark.parametrize("provider", get_args(Provider))
@pytest.mark.parametrize("error", [False, True])
def test_no_provider_is_sent_the_whole(store: Store, provider: Provider, error: bool) -> None:
    canary = "c4n4ry"
    output = Output("x\n" * 5_000 + canary + "y\n" * 5_000, error=error)
    short = shorten(output, 1_000)
    session = store.create()
    with session.turn() as turn:
        turn.user("go")
        turn.assistant("", tool_calls=[ToolCall("c1", "run_command", {})])
        turn.tool_started("c1")
        turn.tool("c1", short.content, error=short.error)
    window = session.window(provider=provider)
    sent = json.dumps([*window])
    assert canary not in sent
    assert len(sent) < 3_000
    assert whole(short).sha256 in sent  # type: ignore[operator]
    assert store.blob(whole(short).sha256 or "").decode().count(canary) == 1


def test_a_window_that_must_shorten_more_keeps_the_handle(store: Store) -> None:
    short = shorten(Output("word " * 50_000), 20_000)
    session = store.create()
    session.append(
        Message.user("go"),
        Message.assistant("", tool_calls=[ToolCall("c1", "run_command", {})]),
        Message.tool("c1", pieces(short)),
    )
    window = session.window(max_tokens=4_000)
    assert window.notes
    assert str(whole(short).sha256) in json.dumps([*window])


def test_secrets_in_a_kept_output_do_not_leave_with_an_export(store: Store, tmp_path: Path) -> None:
    secret = "sk-proj-" + "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY" * 2
    short = shorten(Output("x\n" * 5_000 + f"OPENAI_API_KEY={secret}\n" + "y\n" * 5_000), 1_000)
    store.create().append(
        Message.assistant("", tool_calls=[ToolCall("c1", "run_command", {})]),
        Message.tool("c1", pieces(short)),
    )
    report = store.export(tmp_path / "out.jsonl")
    assert report.review is not None
    assert report.review.replaced == 1
    assert secret not in (tmp_path / "out.jsonl").read_text()


def test_a_kept_output_is_read_on_from_where_it_was_cut() -> None:
    desk = Desk([])
    desk.add(session_tools(desk.store, output=3_000))
    text = "".join(f"{n}, ü\n" for n in range(2_000))
    short = shorten(Output(text), 1_000)
    asyncio.run(desk.session.append(Message.tool("c1", pieces(short))))
    head, _, tail = texts(short)
    handle, read, offset = whole(short).sha256, head, len(head)
    while True:
        said = desk.run("read_output", handle=handle, offset=offset)
        assert len(said) <= 3_000
        what, _, rest = said.partition("\n")
        mark = rest.partition("\n")[0]
        inside = rest.removeprefix(mark + "\n").removesuffix("\n" + mark.replace("<", "</"))
        read += inside
        offset += len(inside)
        if "Continue with" not in what:
            break
        assert f"Continue with offset={offset}." in what
    assert read == text
    assert read.endswith(tail)
    assert "only" in desk.fail("read_output", handle=handle, offset=len(text))
    desk.close()
