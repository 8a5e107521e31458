"""Generated stores: made by the operations, with all that users and programs may put into them.

A *world* is a store after a sequence of steps: appends, turns that are sealed, fail or stay open,
drafts that are cut off, head moves, forks, summaries, purges, damage. Steps are drawn before they
are applied, so that the same ones can be applied to stores of several kinds.

Every message gets a number of its own, which is written in all its parts: as `qm0042q` in its text,
`qr0042q` in tool results, `qt0042q` in pieces for some providers only (thinking, a provider's own
items), `qs0042q` in a summary. In a window these tags show which message a text came from. In a
draw they are `@`, `%`, `~` and `$`.
"""

from __future__ import annotations

import contextlib
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar

import apsw
import msgspec
from hypothesis import strategies as st

from holdfast import Message, Session, Store, ToolCall
from holdfast.errors import BadQuery, Damaged, IdConflict, MessageNotFound, SessionBusy
from holdfast.formats import anthropic, gemini, openai, openai_responses
from holdfast.formats.registry import PROVIDERS
from holdfast.storage.memory import MemoryBackend
from holdfast.storage.postgres.backend import PostgresBackend
from holdfast.testing.conformance.fixtures import SetClock
from holdfast.turn import Turn
from holdfast.values import JSON, File, Part, Raw, Text, Thinking, ToolResult, Window
from tests import store_urls

T = TypeVar("T")

_KINDS: Final = {"@": "m", "%": "r", "~": "t", "$": "s"}
_IN_TEXT: Final = re.compile(r"q([mrts])(\d{4})q")
# A file's data begin with nine bytes of mark; this is how they look in base64.
_IN_DATA: Final = re.compile(r"cW0w[a-zA-Z0-9]{8}|cXIw[a-zA-Z0-9]{8}")


def marks(text: str) -> list[tuple[str, int]]:
    """Find the marks in a text, in order: of which kind, and of which message."""
    found = [(m.start(), m[1], int(m[2])) for m in _IN_TEXT.finditer(text)]
    found += [
        (m.start(), inner[1], int(inner[2]))
        for m in _IN_DATA.finditer(text)
        if (inner := _IN_TEXT.match(b64decode(m[0]).decode("latin-1")))
    ]
    return [(kind, number) for _, kind, number in sorted(found)]


def number_of(message: Message) -> int | None:
    """Return the number a message was made with; what the store made or erased has none."""
    found = marks(repr(message.parts))
    return found[0][1] if found else None


def with_seqs(window: Window, session: Session) -> Window:
    """Return a window with seqs as sources: messages of the store itself have an id of its own."""
    seqs = {message.id: str(message.seq) for message in session.messages()}
    sources = tuple(tuple(seqs[source] for source in made_of) for made_of in window.sources)
    return msgspec.structs.replace(window, sources=sources)


def _stamped(message: Message, number: int) -> Message:
    """Write its number in a message's parts."""
    parts = msgspec.to_builtins(message.parts, builtin_types=(bytes,))
    kind: type = tuple[Part, ...]
    return msgspec.structs.replace(
        message,
        id=f"message {number}",
        parts=msgspec.convert(_with_number(parts, number), kind, builtin_types=(bytes,)),
    )


def _with_number(value: object, number: int) -> object:
    if isinstance(value, str):
        for sign, kind in _KINDS.items():
            value = value.replace(sign, f"q{kind}{number:04}q")
        return value
    if isinstance(value, bytes):
        for sign, kind in _KINDS.items():
            value = value.replace(sign.encode(), f"q{kind}{number:04}q__".encode())
        return value
    if isinstance(value, dict):
        return {_with_number(k, number): _with_number(v, number) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_number(inner, number) for inner in value]
    return value


# -------------------------------------------------------------------------------------- messages


def _one_of(*kinds: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """Draw one of these, each as likely as it is often named (`st.one_of` would not count)."""
    return st.sampled_from(kinds).flatmap(lambda kind: kind)


_said = st.sampled_from(
    [
        *["@ hello"] * 8,
        *["", " ", "\n\t", "\u200b", "\0", "\ud800", "[image: x.png]"],
        "[2026-01-02 03:04 UTC] @ hi",
        "[image: @.png]",
        "@ [tool call: look_up]\n[file: a]",
        "@ \ud800\0\udfff",
        "  @ with blanks around it \n ",
        "@ " + "word " * 60,
        "@ " + "word " * 700,
        "[cut off] @",
        "Summary of the conversation so far:\n@",
    ]
)
_found = st.sampled_from(
    [*["% found"] * 6, "", " ", "%\ud800\0", "% " + "found " * 200, "% " + "found " * 4_000]
)
_thought = st.sampled_from(["~ hm", "~ hm", "", " ", "~\ud800"])
_ids = st.sampled_from(["a", "a", "b", "c", "d", "call 1", "x" * 70, "é", "toolu_1", "", "-"])
_names = st.sampled_from(
    [*["look_up"] * 5, "", " ", "files/read", "é", "9", "n" * 130, "a.b:c", "\ud800"]
)
_arguments: st.SearchStrategy[JSON] = st.sampled_from(
    [{"a": "@"}, {"a": "@"}, '{"a":"@"}', "{broken @", ["@"], "@", None, {}, {"a": "\ud800@"}]
)
_calls = st.builds(ToolCall, _ids, _names, _arguments)
_files = st.builds(
    File,
    name=st.sampled_from(["@", "@.png", "@\nb"]),
    mime=st.sampled_from(
        [
            *[None, "image/png", "IMAGE/JPEG", "image/svg+xml", "application/pdf", "text/plain"],
            *["text/csv; charset=utf-8", "audio/wav", "video/mp4", "application/zip", "", "odd"],
        ]
    ),
    data=st.sampled_from([b"", b"@", b"@\xff\x00"]),
)
_answer_files = st.builds(
    File,
    name=st.just("%.png"),
    mime=st.sampled_from(["image/png", "application/zip", "text/plain"]),
    data=st.sampled_from([b"", b"%"]),
)
_thoughts = st.builds(Thinking, _thought, st.sampled_from([None, "c2ln", "", "gAAAA=", "\ud800"]))
# What nobody knows is sent to nobody. What is kept whole of a provider goes back to it as it is, so
# such pieces come from what it may have sent; notes beside others may be anything.
_PIECES: Final[list[JSON]] = [
    {"content": {"type": "text", "text": "~"}},
    {"content": {"type": "odd", "odd": "~"}},
    {"content": {"text": "~"}},
    {"content": {}},
    {"item": {"type": "reasoning", "id": "rs_~", "summary": []}},
    {"item": {"type": "web_search_call", "id": "ws_~", "status": "completed"}},
    {"item": {}},
]
_NOTES: Final[list[JSON]] = [
    None,
    [],
    "~",
    {"call": {"id": "~"}},
    {"part": {"cache_control": {"type": "ephemeral"}}, "of": "text"},
    {"part": {"thoughtSignature": "c2ln"}, "of": "tool_call"},
    {"part": 7, "of": "text"},
    {"fields": {"role": "system", "name": "~"}, "of": "user"},
    {"fields": {"refusal": "~"}, "of": "assistant"},
]
_raws = st.builds(
    Raw, st.sampled_from(["elsewhere", ""]), st.sampled_from([*_NOTES, *_PIECES])
) | st.builds(
    Raw,
    st.sampled_from(PROVIDERS),
    st.sampled_from(_NOTES),
)
_results = st.builds(
    ToolResult,
    _ids,
    _found | st.lists(_found.map(Text) | _answer_files | _raws, max_size=3).map(tuple),
    error=st.booleans(),
    name=st.sampled_from([None, "look_up", "é"]),
)
_flags: st.SearchStrategy[dict[str, JSON]] = st.sampled_from(
    [*[{}] * 12, {"hidden": True}, {"command": True}, {"injected": True}, {"hidden": False}]
)
_models = st.sampled_from([None, None, "claude-x", "gpt-x", "gemini-x"])


def _message(
    role: Literal["system", "user", "assistant", "tool"],
    parts: Sequence[Part],
    metadata: dict[str, JSON],
    *,
    status: Literal["complete", "partial"] = "complete",
    model: str | None = None,
    name: str | None = None,
) -> Message:
    return Message(
        role=role, parts=tuple(parts), metadata=metadata, status=status, model=model, name=name
    )


_texts = _said.map(Text)
_users = st.builds(
    _message,
    st.just("user"),
    st.lists(_one_of(_texts, _texts, _texts, _files, _raws), max_size=3),
    _flags,
    name=st.sampled_from([None, None, "Ann", "é", "x" * 70]),
)
_replies = st.builds(
    _message,
    st.just("assistant"),
    st.lists(_one_of(_texts, _texts, _calls, _calls, _calls, _thoughts, _raws, _files), max_size=4),
    _flags,
    status=st.sampled_from(["complete", "complete", "complete", "partial"]),
    model=_models,
)
_answers = st.builds(_message, st.just("tool"), st.lists(_results, min_size=1, max_size=2), _flags)
_instructions = st.builds(
    _message, st.just("system"), st.lists(_texts | _files, max_size=2), _flags
)
_mixed = st.builds(
    _message,
    st.sampled_from(["user", "tool", "assistant", "system"]),
    st.lists(_results | _texts | _calls | _files | _thoughts | _raws, max_size=4),
    _flags,
)
_plain = st.sampled_from([Message.user("@ hello"), Message.assistant("@ hello")])


def _tool_run(
    calls: int, answered: Sequence[int], *, role: Literal["tool", "user"]
) -> list[Message]:
    """Make parallel calls with some answers, in some order, some twice, with a word in between."""
    asked = [ToolCall(f"p{at}", "look_up", {"a": "@"}) for at in range(calls)]
    run = [Message.assistant("@ let me see", tool_calls=asked)]
    for at in answered:
        if at >= calls:
            run.append(Message.user("@ are you there?"))
        else:
            run.append(Message(role=role, parts=(ToolResult(f"p{at}", "% found"),)))
    return run


_runs = st.builds(
    _tool_run,
    st.integers(1, 3),
    st.lists(st.integers(0, 4), max_size=5),
    role=st.sampled_from(["tool", "tool", "user"]),
)


# ------------------------------------------------------------------------- providers' own messages

_FROM_OPENAI: Final[list[dict[str, JSON]]] = [
    {"role": "assistant", "content": None, "refusal": "~ no"},
    {"role": "assistant", "content": "@ sure", "annotations": [{"type": "url_citation"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "~"}]},
    {"role": "assistant", "content": "@", "audio": {"id": "audio_~"}},
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "function", "name": "f", "content": "% old"},
    {"role": "developer", "content": "@ be brief"},
    {"role": "user", "content": [{"type": "text", "text": "@"}], "name": "Ann"},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://~.png"}}]},
    {"role": "user", "content": [{"type": "file", "file": {"file_id": "~"}}]},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "a", "type": "custom", "custom": {"name": "grep", "input": "@"}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": '{ "a": "@" }'}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "%"}]},
]
_FROM_RESPONSES: Final[list[dict[str, JSON]]] = [
    {"type": "reasoning", "id": "rs_~", "summary": [{"type": "summary_text", "text": "~"}]},
    {"type": "reasoning", "id": "rs_~", "summary": [], "encrypted_content": "gAAAA~"},
    {
        "type": "message",
        "id": "msg_~",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "@", "annotations": []}],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "~"}]},
    {"type": "function_call", "id": "fc_~", "call_id": "a", "name": "f", "arguments": '{"a":"@"}'},
    {"type": "function_call_output", "call_id": "a", "output": "% found"},
    {"type": "custom_tool_call", "call_id": "b", "name": "grep", "input": "@"},
    {"type": "custom_tool_call_output", "call_id": "b", "output": "%"},
    {"type": "web_search_call", "id": "ws_~", "status": "completed"},
    {"type": "item_reference", "id": "msg_~"},
    {"type": "compaction_trigger"},
    {"role": "developer", "content": "@ be brief"},
    {"role": "user", "content": [{"type": "input_image", "file_id": "~", "detail": "auto"}]},
    {"role": "user", "content": []},
]
_SEARCH: Final[JSON] = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "~"},
}
_SEARCHED: Final[JSON] = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {"type": "web_search_result", "url": "https://~", "title": "~", "encrypted_content": "~"}
    ],
}
_FROM_ANTHROPIC: Final[list[dict[str, JSON]]] = [
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "~", "signature": "c2ln"},
            {"type": "text", "text": "@", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "@"}},
        ],
    },
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "~", "signature": "c2ln"}]},
    {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "~"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "redacted_thinking", "data": "~"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        ],
    },
    {"role": "assistant", "content": [_SEARCH, _SEARCHED, {"type": "text", "text": "@"}]},
    {"role": "assistant", "content": [_SEARCH]},
    {"role": "assistant", "content": [_SEARCHED]},
    {"role": "assistant", "content": "@ prefill  "},
    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://~"}}]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "%"},
            {"type": "text", "text": "@"},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True},
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "%"}]},
        ],
    },
    {"role": "system", "content": "@ from now on"},
    {"role": "user", "content": [{"type": "container_upload", "file_id": "~"}]},
]
_FROM_GEMINI: Final[list[dict[str, JSON]]] = [
    {
        "role": "model",
        "parts": [
            {"text": "~", "thought": True},
            {"text": "@", "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "f", "args": {"a": "@"}}, "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "f", "args": {"b": "@"}}},
        ],
    },
    {"role": "model", "parts": [{"text": "~", "thought": True}]},
    {"role": "model", "parts": [{"text": "", "thoughtSignature": "c2ln"}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "%"}}}]},
    {"role": "function", "parts": [{"functionResponse": {"name": "f", "response": {"n": "%"}}}]},
    {"role": "model", "parts": [{"executableCode": {"language": "PYTHON", "code": "~"}}]},
    {"role": "user", "parts": [{"fileData": {"fileUri": "gs://~", "mimeType": "image/png"}}]},
    {"parts": [{"text": "@"}]},
    {"role": "user", "parts": []},
]
_foreign = st.sampled_from(
    [
        *map(openai.decode, _FROM_OPENAI),
        *map(openai_responses.decode, _FROM_RESPONSES),
        *map(anthropic.decode, _FROM_ANTHROPIC),
        *map(gemini.decode, _FROM_GEMINI),
    ]
)

messages: st.SearchStrategy[Message] = _one_of(
    _plain, _plain, _users, _users, _replies, _replies, _answers, _instructions, _mixed, _foreign
)
histories = st.lists(messages.map(lambda one: [one]) | _runs, min_size=1, max_size=5).map(
    lambda groups: [message for group in groups for message in group]
)


# ----------------------------------------------------------------------------------------- worlds


class World:
    """A store, the sessions that were made in it, and the one that is talked in."""

    def __init__(self, store: Store, clock: SetClock, url: str) -> None:
        self.store = store
        self.url = url
        self.session = store.create()
        self._clock = clock
        self._numbers = iter(range(1, 1000))
        self._open: Turn | None = None

    def stamped(self, message: Message) -> Message:
        """Return a message the next number."""
        return _stamped(message, next(self._numbers))

    def number(self) -> int:
        """Return the next number."""
        return next(self._numbers)

    def crash(self) -> None:
        """Let the process that holds a turn be as good as dead."""
        self._open = None
        self._clock.advance(self.store.backend.lease + 1)

    def turn(self) -> Turn | None:
        """Open a turn, unless one is held."""
        with contextlib.suppress(SessionBusy):
            return self.session.turn().__enter__()
        return None

    def hold(self, turn: Turn) -> None:
        """Leave a turn open."""
        self._open = turn

    def free(self) -> None:
        """End the turn that is held."""
        if self._open is not None:
            self._open.cancel()
            self._open = None

    def go_to(self, session: Session) -> None:
        """Talk in another session from now on."""
        self._open = None
        self.session = session


Step: TypeAlias = Callable[[World], object]


@contextlib.contextmanager
def memory_world() -> Iterator[World]:
    """Begin a world in memory."""
    with world_at("memory:") as world:
        yield world


@contextlib.contextmanager
def world_at(url: str) -> Iterator[World]:
    """Begin a world in an empty store."""
    clock = SetClock()
    with Store(store_urls.backend(url, clock), clock) as store:
        yield World(store, clock, url)


def build(world: World, steps: Sequence[Step]) -> Session:
    """Take the steps; those that are refused, because of others, change nothing."""
    for step in steps:
        with contextlib.suppress(SessionBusy, BadQuery, Damaged, MessageNotFound, IdConflict):
            step(world)
    return world.session


# ------------------------------------------------------------------------------------------ steps


def _append(world: World, *, said: Sequence[Message]) -> None:
    world.session.append(*map(world.stamped, said))


def _append_much(world: World, *, said: Sequence[Message], times: int) -> None:
    """Append the same again and again, each time as other messages: more than a page."""
    for _ in range(times):
        _append(world, said=said)


def _take_turn(
    world: World,
    *,
    said: Sequence[Message],
    started: Sequence[str],
    draft: str | None,
    end: Literal["sealed", "cancelled", "failed", "open", "crashed", "recovered"],
) -> None:
    """Take a turn: messages, tools that start, perhaps a draft; and end it in some way."""
    turn = world.turn()
    if turn is None:
        return
    for message in said:
        turn.add(world.stamped(message))
    for call in started:
        with contextlib.suppress(BadQuery):
            turn.tool_started(call)
    if draft is not None:
        _draft(turn, draft.replace("@", f"qm{world.number():04}q"), end)
    if end == "sealed":
        turn.__exit__(None, None, None)
    elif end == "cancelled":
        turn.cancel()
    elif end == "failed":
        turn.fail("no reply")
    elif end == "open":
        world.hold(turn)
    else:
        world.crash()
        if end == "recovered":
            world.session.recover()


def _draft(turn: Turn, text: str, end: str) -> None:
    """Stream a reply; one that is sealed is closed, others are left as they are."""
    draft = turn.stream()
    draft.think("hm", signature="c2ln")
    draft.write(text)
    draft.tool_call("d", "look_up", {"a": 1})
    draft.flush()
    if end == "sealed":
        draft.close()


def _rewind(world: World, *, to: int) -> None:
    world.session.rewind(to % (world.session.head().seq + 1))


def _undo(world: World, *, again: bool) -> None:
    world.session.undo()
    if again:
        world.session.redo()


def _fork(world: World, *, at: int | None) -> None:
    seq = None if at is None else at % (world.session.head().seq + 1)
    world.go_to(world.session.fork(seq))


def _continue(world: World) -> None:
    world.go_to(world.store.create(parent=world.session))


def _purge_parent(world: World) -> None:
    """Erase what the session inherited, from it, too."""
    parent = world.session
    world.free()
    world.go_to(parent.fork())
    world.store.purge(parent.id, forks="erase")


def _replace(world: World, *, said: Sequence[Message], kept: int) -> None:
    history = [m for m in world.session.messages() if m.status != "damaged"]
    world.session.replace([*history[: kept % (len(history) + 1)], *map(world.stamped, said)])


def _clear(world: World) -> None:
    world.session.clear()


def _summarize(world: World, *, upto: int | None, meanwhile: Sequence[Message]) -> None:
    """Summarize all, or up to some message, or what there was before others came in."""
    seq = world.session.head().seq
    place = None if upto is None else upto % (seq + 1)
    if meanwhile:
        place = seq if place is None else place
        _append(world, said=meanwhile)
    world.session.summarize(f"qs{world.number():04}q so far", upto=place)


def _recover(world: World) -> None:
    world.crash()
    world.session.recover()


def _damage(world: World, *, at: int) -> None:
    """Change a byte of a stored message, so that it does not match its checksum any more."""
    history = [m for m in world.session.messages() if number_of(m) is not None]
    if not history:
        return
    message_id = history[at % len(history)].id
    backend = world.store.backend
    if isinstance(backend, MemoryBackend):
        for rows in backend.tables.messages.values():
            for seq, row in rows.items():
                if row.id == message_id:
                    rows[seq] = msgspec.structs.replace(row, body=row.body + b" ")
        return
    if isinstance(backend, PostgresBackend):
        with store_urls.superuser(world.url) as admin:
            admin.execute(
                "UPDATE messages SET body = body || %b WHERE id = %b", (b" ", message_id.encode())
            )
        return
    connection = apsw.Connection(world.store.url.removeprefix("sqlite:").removeprefix("//"))
    connection.execute(
        "UPDATE messages SET body = CAST(CAST(body AS TEXT) || ' ' AS BLOB) WHERE id = ?",
        (message_id,),
    )
    connection.close()


_small = st.integers(0, 20)
_some = st.lists(messages, max_size=3)
_appends = st.builds(partial, st.just(_append), said=histories)
_much = st.builds(
    partial,
    st.just(_append_much),
    said=st.lists(_plain | _users | _answers, min_size=1, max_size=2) | _runs,
    times=st.integers(10, 40),
)
_turns = st.builds(
    partial,
    st.just(_take_turn),
    said=histories,
    started=st.lists(st.sampled_from(["a", "b", "p0", "p1", "d"]), max_size=3),
    draft=st.sampled_from([None, None, "@ it is", "", "@ [image: x.png]"]),
    end=st.sampled_from(
        ["sealed", "sealed", "cancelled", "failed", "open", "crashed", "recovered"]
    ),
)
_movements = st.one_of(
    st.builds(partial, st.just(_rewind), to=_small),
    st.builds(partial, st.just(_undo), again=st.booleans()),
    st.builds(partial, st.just(_fork), at=st.none() | _small),
    st.just(_continue),
    st.just(_purge_parent),
    st.builds(partial, st.just(_replace), said=_some, kept=_small),
    st.just(_clear),
    st.just(_recover),
    st.builds(partial, st.just(_damage), at=_small),
)
_summaries = st.builds(
    partial, st.just(_summarize), upto=st.none() | _small, meanwhile=st.just([]) | _some
)
steps: st.SearchStrategy[list[Step]] = st.builds(
    lambda first, rest: [first, *rest],
    _one_of(_appends, _appends, _much, _turns),
    st.lists(
        _one_of(*[_appends] * 3, _much, *[_turns] * 2, *[_movements] * 3, *[_summaries] * 2),
        max_size=6,
    ),
)
