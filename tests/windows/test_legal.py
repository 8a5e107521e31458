"""Whatever was stored, a window is valid, by checkers that share no code with windows."""

import contextlib
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Message, ToolCall
from holdfast.testing import legality
from holdfast.values import JSON, File, Part, Provider, Raw, Text, Thinking, ToolResult
from tests.model import strategies as some

PROVIDERS: tuple[Provider, ...] = get_args(Provider)

_few = st.sampled_from(["a", "b", "c", "call 1", "x" * 70, "é", ""])
_ids = _few.filter(bool)
_words = st.sampled_from(
    [
        "hello",
        "",
        " ",
        "\n",
        "[2026-01-02 03:04 UTC] hi",
        "[image: x.png]",
        "\ud800",
        "\0",
        "ok " * 99,
    ]
)
_arguments: st.SearchStrategy[JSON] = st.sampled_from(
    [None, {}, {"a": 1}, "{}", "{broken", [1], "7"]
)
_calls = st.builds(ToolCall, _ids, _few, _arguments)
_results = st.builds(
    ToolResult,
    _ids,
    _words | st.just((Text("x"), File(name="f.png", mime="image/png", data=b"\x89PNG"))),
    error=st.booleans(),
)
_files = st.builds(
    File,
    name=st.sampled_from([None, "cat.png", "a\nb"]),
    mime=st.sampled_from([None, "image/png", "application/pdf", "text/plain", "audio/wav"]),
    data=st.sampled_from([b"", b"data"]),
)
_thoughts = st.builds(Thinking, _words, st.sampled_from([None, "c2ln"]))
_raws = st.builds(Raw, st.sampled_from([*PROVIDERS, "elsewhere"]), some.json_values)
_spoken: st.SearchStrategy[Part] = _words.map(Text) | _files | _raws
_flags = st.sampled_from([{}, {}, {}, {"hidden": True}, {"command": True}])


def _message(role: str, parts: list[Part], flags: dict[str, JSON], status: str) -> Message:
    return Message(role=role, parts=tuple(parts), metadata=flags, status=status)  # type: ignore[arg-type]


_histories = st.lists(
    st.builds(
        _message,
        st.sampled_from(["user", "user", "system"]),
        st.lists(_spoken, max_size=3),
        _flags,
        st.just("complete"),
    )
    | st.builds(
        _message,
        st.just("assistant"),
        st.lists(_spoken | _calls | _thoughts, max_size=4),
        _flags,
        st.sampled_from(["complete", "partial"]),
    )
    | st.builds(
        _message,
        st.sampled_from(["tool", "tool", "user"]),
        st.lists(_results | _words.map(Text), max_size=3),
        st.just({}),
        st.just("complete"),
    ),
    max_size=14,
)


@pytest.mark.parametrize("provider", PROVIDERS)
@given(history=_histories, budget=st.none() | st.integers(1, 2_000), summarized=st.booleans())
def test_whatever_is_stored_the_window_is_legal(
    provider: Provider, history: list[Message], budget: int | None, summarized: bool
) -> None:
    """Orphans, doubles, empty texts, wrong orders, other providers' parts, any budget."""
    with holdfast.open("memory:") as store:
        session = store.create()
        session.append(*history)
        if summarized:
            _summarize(session)
        before = session.messages()
        window = session.window(provider=provider, max_tokens=budget)
        assert msgspec.json.encode((window.messages, window.system))  # Text is Unicode.
        if window.messages:
            assert legality.problems(provider, list(window.messages), window.system) == []
        assert session.messages() == before


def _summarize(session: holdfast.Session) -> None:
    with contextlib.suppress(holdfast.errors.BadQuery):  # There may be nothing to stand for.
        session.summarize("so far", upto=session.head().seq // 2)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("source", PROVIDERS)
@pytest.mark.parametrize("odd", [None, 1, ["x"], {"x": 1}])
def test_a_piece_whose_type_is_not_text_affects_only_itself(
    provider: Provider, source: Provider, odd: JSON
) -> None:
    """Such as no provider sends, and any program may store."""
    with holdfast.open("memory:") as store:
        session = store.session("s")
        pieces: list[JSON] = [{"content": {"type": odd, "text": "x"}}, {"item": {"type": odd}}]
        for data in (*pieces, {"of": odd}):
            session.append(Message.user([Text("before"), Raw(source, data)]))
            session.append(Message.assistant([Text("before"), Raw(source, data)]))
        session.append(Message.user("Go on"))
        window = session.window(provider=provider)
    assert "Go on" in str(window.messages[-1])
