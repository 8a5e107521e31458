"""Settings, ids, clock, processes, and the codec's own edges."""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import codec, ids, processes
from holdfast.clock import EPOCH, SystemClock, to_datetime, to_micros
from holdfast.errors import BadMessage, Damaged, Invalid, TooLarge, UnknownBackend
from holdfast.processes import is_alive, this_process
from holdfast.url import Location, check_durability, parse_url
from holdfast.validation import MAX_DEPTH
from holdfast.values import File, Message, Text, Usage
from tests.model import strategies as some

_NOW = datetime(2024, 1, 1, tzinfo=UTC)


# --------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("agent.db", Location("sqlite", "agent.db")),
        ("a/b c%20.db", Location("sqlite", "a/b c%20.db")),
        ("/tmp/x.db", Location("sqlite", "/tmp/x.db")),  # noqa: S108 - only parsed
        (Path("/x.db"), Location("sqlite", "/x.db")),
        (Path("memory:"), Location("sqlite", "memory:")),
        ("sqlite:///rel.db", Location("sqlite", "rel.db")),
        ("sqlite:////abs.db", Location("sqlite", "/abs.db")),
        ("sqlite:///a%20b.db", Location("sqlite", "a b.db")),
        ("sqlite:///a.db?lease=1.5&deadline=2", Location("sqlite", "a.db", 1.5, 2.0)),
        ("memory:", Location("memory", "")),
        ("memory:?lease=3", Location("memory", "", 3.0)),
        ("postgresql://host/db", Location("postgresql", "//host/db")),
        ("./odd:name.db", Location("sqlite", "./odd:name.db")),
    ],
)
def test_urls(url: str | Path, location: Location) -> None:
    """Paths, URLs and options."""
    assert parse_url(url, {}) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a\0b",
        "sqlite:",
        "sqlite:rel.db",
        "sqlite://host/x.db",
        "sqlite:///",
        "sqlite:///a.db?speed=1",
        "sqlite:///a.db?lease=soon",
        "sqlite:///a.db?lease=",
        "sqlite:///a.db?lease=0",
        "sqlite:///a.db?lease=-1",
        "sqlite:///a.db?deadline=nan",
        "sqlite:///a.db?deadline=inf",
        "memory:?x",
    ],
)
def test_what_is_no_url(url: str) -> None:
    """`UnknownBackend`, which says what to write instead."""
    with pytest.raises(UnknownBackend):
        parse_url(url, {})


def test_without_a_url() -> None:
    """The environment variable, read when needed; else the user's state directory."""
    assert parse_url(None, {"HOLDFAST_URL": "memory:"}) == Location("memory", "")
    assert parse_url(None, {"HOLDFAST_URL": "x.db"}) == Location("sqlite", "x.db")
    for environ in ({}, {"HOLDFAST_URL": ""}):
        location = parse_url(None, environ)
        assert (location.scheme, Path(location.address).name) == ("sqlite", "holdfast.db")
        assert Path(location.address).is_relative_to(os.environ["XDG_STATE_HOME"])


def test_a_file_that_looks_like_a_url_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing file takes precedence."""
    monkeypatch.chdir(tmp_path)
    Path("memory:").touch()
    assert parse_url("memory:", {}) == Location("sqlite", "memory:")


@pytest.mark.parametrize("mode", ["power", "process"])
def test_durabilities(mode: str) -> None:
    """Both are accepted."""
    assert check_durability(mode) == mode


@pytest.mark.parametrize("mode", ["", "POWER", "none", None, 1])
def test_no_durability(mode: str) -> None:
    """Anything else is refused."""
    with pytest.raises(Invalid):
        check_durability(mode)


# -------------------------------------------------------------------------------------------- ids


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    """Their random parts differ from the first id on, not only their times."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, ids.message_id()[-17:].encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    assert len(theirs) == len("8000-000000000000")
    assert ids.message_id()[-17:] != theirs


def test_message_ids_are_uuids_in_order() -> None:
    """Version 7, of this moment, sorted by when they were made, none twice."""
    before = time.time_ns() // 1_000_000
    made = []
    for _ in range(200):
        made.append(ids.message_id())
        time.sleep(1e-6)
    assert len(set(made)) == len(made)
    for text in made:
        parsed = UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (
            text,
            7,
            "specified in RFC 4122",
        )
        assert before <= parsed.int >> 80 <= time.time_ns() // 1_000_000
    stamps = [text[:18] for text in made]
    assert stamps == sorted(stamps)


def test_session_ids_are_short_and_random() -> None:
    """16 characters that are easy to type."""
    made = {ids.session_id() for _ in range(500)}
    assert len(made) == 500
    assert all(len(i) == 16 and set(i) <= set("abcdefghijklmnopqrstuvwxyz234567") for i in made)


def test_turns_are_named_by_session_and_number() -> None:
    """So an id needs no lookup table."""
    assert ids.turn_id("abc", 7) == "abc.7"


# ------------------------------------------------------------------------------------------ clock


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_are_exact(moment: datetime) -> None:
    """To the microsecond, for every date there is."""
    assert to_datetime(to_micros(moment)) == moment


def test_the_epoch() -> None:
    """Microseconds count from 1970, in UTC, whatever the zone of what is given."""
    assert (to_micros(EPOCH), to_datetime(0)) == (0, EPOCH)
    there = datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert to_micros(there) == 0


def test_the_system_clock_is_the_systems() -> None:
    """In microseconds."""
    before = time.time_ns() // 1000
    assert before <= SystemClock().micros() <= time.time_ns() // 1000


# -------------------------------------------------------------------------------------- processes


def test_this_process_is_alive() -> None:
    """Its identity names its own pid."""
    here = this_process()
    assert here.pid == os.getpid()
    assert is_alive(here) is True


def test_a_process_that_ended_is_dead() -> None:
    """Also a zombie, and one whose pid another process has now."""
    code = (
        "import msgspec, sys; from holdfast.processes import this_process;"
        "sys.stdout.buffer.write(msgspec.json.encode(this_process()) + b'\\n');"
        "sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        holder = msgspec.json.decode(child.stdout.readline(), type=type(this_process()))
        assert holder.pid == child.pid
        assert is_alive(holder) is True
        assert is_alive(msgspec.structs.replace(holder, started="1")) is False
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_alive(holder) is False, "a zombie holds nothing"
        child.wait()
        assert is_alive(holder) is False


def test_a_process_that_cannot_be_read_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many open files, or with `/proc` hiding the processes of other users."""
    here = this_process()
    monkeypatch.setattr(processes, "_read", lambda _: "")
    assert is_alive(here) is None
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert is_alive(msgspec.structs.replace(here, pid=child.pid)) is False
    assert is_alive(msgspec.structs.replace(here, pid=1)) is None
    assert is_alive(msgspec.structs.replace(here, pid=2**80)) is False


def test_the_monotonic_clock_is_that_of_the_boot_and_the_time_namespace() -> None:
    """The pid namespace, as of a container, does not matter."""
    here = this_process()
    assert processes.has_same_monotonic_clock(msgspec.structs.replace(here, namespace="another"))
    for field in ("boot", "time_namespace"):
        elsewhere = msgspec.structs.replace(here, **{field: "another"})
        assert not processes.has_same_monotonic_clock(elsewhere)


@pytest.mark.parametrize("field", ["boot", "namespace", "time_namespace"])
def test_a_process_elsewhere_is_not_known(field: str) -> None:
    """Another boot or another namespace: only its lease counts."""
    elsewhere = msgspec.structs.replace(this_process(), **{field: "another"})
    assert is_alive(elsewhere) is None


def test_a_forked_child_is_somebody_else() -> None:
    """Its identity has its own pid and start time."""
    here = this_process()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, msgspec.json.encode(this_process()))
        os._exit(0)
    os.waitpid(pid, 0)
    child = msgspec.json.decode(os.read(read, 10_000), type=type(here))
    os.close(read)
    os.close(write)
    assert child.pid == pid != here.pid


# ------------------------------------------------------------------------------------------ codec


@given(some.texts)
def test_any_text_is_bytes_and_back(text: str) -> None:
    """Surrogates included, and no two texts are the same bytes."""
    assert codec.decode_text(codec.encode_text(text)) == text


_turns = st.integers(1, 2**32 - 1)


@given(some.texts, _turns, _turns, st.binary(min_size=1), st.data())
def test_a_flipped_bit_changes_the_checksum(
    name: str, turn: int, other: int, body: bytes, data: st.DataObject
) -> None:
    """Wherever in the body it is; so does another turn, or none, or another id."""
    crc = codec.checksum(name, turn, body)
    at = data.draw(st.integers(0, len(body) * 8 - 1))
    flipped = bytearray(body)
    flipped[at // 8] ^= 1 << at % 8
    assert codec.checksum(name, turn, bytes(flipped)) != crc
    assert codec.checksum(name + "x", turn, body) != crc
    assert codec.checksum(name, None, body) != crc
    assert turn == other or codec.checksum(name, other, body) != crc


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"role":"user"}',
        b'{"role":"boss","at":"2024-01-01T00:00:00Z"}',
        b'{"role":"user","at":"yesterday"}',
        b'{"role":"user","at":"2024-01-01T00:00:00Z","parts":[{"type":"blob","sha256":"gone"}]}',
        b'{"role":"user","at":"2024-01-01T00:00:00Z","parts":[{"type":"alien"}]}',
        b"\xff\xfe\x00",
        b"\xed\xa0\x80",
        b"[" * 10_000,
    ],
)
def test_a_body_that_cannot_be_read_is_damage(body: bytes) -> None:
    """`Damaged`, never another error and never an empty message."""
    with pytest.raises(Damaged):
        codec.decode(body, id="x", seq=1, turn_id=None, blob=lambda _: None)


@pytest.mark.parametrize("filler", ["", "x" * 10_000])
@pytest.mark.parametrize(
    "field",
    [
        '"metadata":{"x":%s}',
        '"parts":[{"type":"tool_call","id":"c","name":"n","arguments":%s}]',
        '"parts":[{"type":"raw","source":"s","data":%s}]',
        '"parts":[{"type":"text","text":"a"},{"type":"raw","source":"s","data":%s}]',
        '"parts":[{"type":"tool_result","call_id":"c","content":[{"type":"raw","source":"s","data":%s}]}]',
    ],
)
def test_what_is_nested_too_deeply_is_not_decoded(field: str, filler: str) -> None:
    """Whichever value of a message it is, and however short the message is."""

    def read(depth: int) -> Message:
        value = field % ("[" * depth + "]" * depth)
        text = f'{{"role":"user","at":"2026-01-01T00:00:00Z","name":"{filler}",{value}}}'
        return codec.decode(text.encode(), id="x", seq=1, turn_id=None, blob=lambda _: None)

    assert read(MAX_DEPTH).name == filler
    for depth in (MAX_DEPTH + 10, 900, 1_900):
        with pytest.raises(Damaged):
            read(depth)


@given(some.messages, st.data())
def test_damaged_bodies_are_damage_or_messages(message: Message, data: st.DataObject) -> None:
    """Any byte changed anywhere: a message or `Damaged`; nothing else comes out of the codec."""
    item = codec.encode(message, _NOW)
    at = data.draw(st.integers(0, len(item.body) - 1))
    body = bytearray(item.body)
    body[at] = data.draw(st.integers(0, 255))
    try:
        found = codec.decode(bytes(body), id="x", seq=1, turn_id=None, blob=dict(item.blobs).get)
    except Damaged:
        return
    assert isinstance(found, Message)


def test_what_a_message_may_weigh() -> None:
    """Body and files together; the limit is lowered here because the real one is 256 MiB."""
    codec.encode(Message.user(["x" * 90_000, File(data=b"y" * 90_000)]), _NOW, limit=200_000)
    for large in (
        Message.user("x" * 200_001),
        Message.user([File(data=b"y" * 200_001)]),
        Message.user(["x" * 150_000, File(data=b"y" * 150_000)]),
        Message.user("a", metadata={"k": "x" * 200_001}),
    ):
        with pytest.raises(TooLarge):
            codec.encode(large, _NOW, limit=200_000)


def test_a_time_is_filled_in_only_where_none_was_given() -> None:
    """A time given by the caller stays."""
    given_ = datetime(2000, 1, 1, tzinfo=UTC)
    for message, wanted in (
        (Message.user("a"), _NOW),
        (Message.user("a", created_at=given_), given_),
    ):
        item = codec.encode(message, _NOW)
        found = codec.decode(item.body, id="x", seq=1, turn_id=None, blob=lambda _: None)
        assert found.created_at == wanted


def test_a_body_can_be_read_without_this_program() -> None:
    """It is self-describing JSON."""
    body = codec.encode(Message.user("hé", usage=Usage(1)), _NOW).body
    assert msgspec.json.decode(body) == {
        "role": "user",
        "at": "2024-01-01T00:00:00Z",
        "parts": [{"type": "text", "text": "hé"}],
        "usage": {"input": 1},
    }


@pytest.mark.parametrize("messages", [[5], ["text"], [None], [{"role": "user"}], [Text("x")]])
def test_what_is_no_message(messages: list[Message]) -> None:
    """`BadMessage` explains how to build one."""
    with pytest.raises(BadMessage, match="Message"):
        codec.encode_batch(messages, _NOW)
