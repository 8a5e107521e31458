"""What leaves by an export holds no secret, is as whole as it can be, and is told.

Secrets here are put together from a prefix and characters drawn with a fixed seed.
"""

import asyncio
import json
import random
import string
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import (
    File,
    Goal,
    Message,
    Raw,
    Record,
    Store,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from holdfast.errors import BadQuery, Invalid
from holdfast.transfer.redact.export_redactor import MAX_FINDINGS, Redactor
from holdfast.transfer.redact.secrets import ALL_NAMES, DEFAULT_NAMES, detectors_named
from holdfast.values import JSON, Provenance, Redaction
from tests.store_urls import KINDS, place
from tests.transfer.views import files, lines_of, shown

MARK: Final = "[redacted: openai key]"
PNG: Final = b"\x89PNG\r\n\x1a\n\0\xff" * 20


def key(seed: object) -> str:
    """Return a plausible key, different for each seed."""
    chance = random.Random(str(seed))
    return "sk-" + "proj-" + "".join(chance.choices(string.ascii_letters + string.digits, k=48))


def exported(store: Store, path: Path, *refs: str) -> list[dict[str, Any]]:
    """Return the records of a redacted export."""
    store.export(path, *refs, overwrite=True)
    return records(path)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def words(path: Path) -> bytes:
    """Return the content of a file, with base64 decoded."""
    blobs = [b64decode(line["data"]) for line in records(path) if line["type"] == "blob"]
    inline = [file for line in records(path) for file in line.get("files", {}).values()]
    small = [b64decode(file["data"]) for file in inline if "data" in file]
    return b"\n".join([path.read_bytes(), *blobs, *small])


PLACES: Final = (
    *("title", "key", "scope", "agent", "model", "cwd", "objective", "summary", "recap"),
    *("metadata", "metadata key", "text", "argument", "argument text", "result", "piece", "raw"),
    *("thought", "signed", "name", "message model", "provenance", "message metadata", "file"),
    *("file name", "file in a result", "left branch", "queued", "queued file", "error", "tool"),
    *("turn model", "trashed", "shared", "fork", "draft", "draft thought", "draft model", "large"),
    *("record kind", "record key", "record data", "record data key", "record file", "small file"),
    *("record file name", "large record", "shared record", "store record", "store record scope"),
)
SECRETS: Final = {place: key(place) for place in PLACES}


def _fill(store: Store) -> None:
    """Put a secret into every text field."""
    its = {place: f"it is {secret}, is it not" for place, secret in SECRETS.items()}
    session = store.session(
        its["key"],
        title=its["title"],
        scope=its["scope"],
        agent=its["agent"],
        model=its["model"],
        cwd=its["cwd"],
        metadata={"a": [its["metadata"]], its["metadata key"]: 1},
    )
    goal = Goal(its["objective"], summary=its["summary"], recap=its["recap"])
    session.update(goal=goal)
    session.append(*_messages(its))
    session.append(*_records(its))
    store.put_record(Record("settings", data={"a": its["store record"]}))
    store.put_record(Record("settings"), scope=its["store record scope"])
    session.append(Message.user(its["left branch"]))
    session.undo()
    with suppress(ValueError), session.turn(model=its["turn model"]) as turn:
        turn.assistant(tool_calls=[ToolCall("c9", its["tool"])])
        turn.tool("c9", "done")
        raise ValueError(its["error"])
    queued = File(name="q.txt", data=f"waits: {its['queued file']}".encode())
    session.enqueue(Message.user([its["queued"], queued]))
    _fork(store, its)
    thrown = store.create()
    thrown.append(Message.user(its["trashed"]))
    store.trash(thrown.id)


def _messages(its: dict[str, str]) -> list[Message]:
    text = File(name="notes", mime="text/plain", data=its["file"].encode())
    inner = File(name="log.txt", data=its["file in a result"].encode())
    arguments: dict[str, JSON] = {"deep": [{"x": its["argument"]}]}
    calls = [ToolCall("c1", "look", arguments), ToolCall("c2", "do", its["argument text"])]
    pieces = (Text(its["piece"]), inner, File(name="p.png", mime="image/png", data=PNG))
    return [
        Message.system("Be kind."),
        Message.user(
            [its["text"], text, File(name=its["file name"], mime="image/png", data=PNG)],
            name=its["name"],
            metadata={"note": its["message metadata"]},
            provenance=Provenance("mail", its["provenance"]),
        ),
        Message.assistant(
            [
                Thinking(its["thought"]),
                Thinking(its["signed"], "signature"),
                Raw("x", {"y": its["raw"]}),
            ],
            tool_calls=calls,
            model=its["message model"],
            usage=Usage(1, 2),
        ),
        Message.tool("c1", its["result"]),
        Message.tool("c2", pieces),
        Message.user("x" * 70_000 + " " + its["large"]),
    ]


def _records(its: dict[str, str]) -> list[Record]:
    files = {
        its["record file name"]: File(mime="image/png", data=PNG),
        "small": File(data=its["small file"].encode()),
        "large": File(data=(its["record file"] + " " * 2000).encode()),
    }
    return [
        Record(its["record kind"], data="harmless"),
        Record("state", key=its["record key"]),
        Record(
            "state", data={"deep": [its["record data"]], its["record data key"]: 1}, files=files
        ),
        Record("state", data="x" * 70_000 + its["large record"]),
    ]


def _fork(store: Store, its: dict[str, str]) -> None:
    """Make a fork of a session, and purge the session."""
    parent = store.create()
    parent.append(Message.user(its["shared"]), Record("state", data=its["shared record"]))
    fork = parent.fork()
    fork.append(Message.user(its["fork"]))
    store.trash(parent.id)
    store.purge(parent.id)


def _stream(store: Store) -> holdfast.Turn:
    """Leave a draft open whose secrets are split between chunks."""
    turn = store.create(title="streams").turn().__enter__()
    turn.user("Go on.")
    reply = turn.stream(model=SECRETS["draft model"])
    reply.usage(Usage(3, 5), cost=Decimal("0.5"))
    for letter in f"it is {SECRETS['draft thought']}!":
        reply.think(letter)
        reply.flush()
    for start in range(0, 80, 7):
        reply.write(f"and {SECRETS['draft']} is the other"[start : start + 7])
        reply.flush()
    return turn


@pytest.fixture(params=KINDS)
def leaky(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with a secret in every text field."""
    with place(request.param, tmp_path) as url, holdfast.open(url, durability="process") as store:
        _fill(store)
        turn = _stream(store)
        yield store
        turn.cancel()


# ----------------------------------------------------------------------------------- every place


def test_no_secret_is_in_the_file(leaky: Store, tmp_path: Path) -> None:
    """Whichever field it was in; all are in an unredacted copy, so this test can fail."""
    leaky.export(tmp_path / "whole.jsonl", redact=None)
    whole = words(tmp_path / "whole.jsonl")
    in_pieces = {"draft", "draft thought"}
    assert [p for p in PLACES if SECRETS[p].encode() not in whole] == sorted(in_pieces)
    report = leaky.export(tmp_path / "safe.jsonl")
    safe = words(tmp_path / "safe.jsonl")
    assert [place for place in PLACES if SECRETS[place].encode() in safe] == []
    assert [place for place in PLACES if SECRETS[place][-12:].encode() in safe] == []
    assert {one.detector for one in report.findings} == {"openai-key", ""}
    assert not any(secret in str(one) for one in report.findings for secret in SECRETS.values())


def test_what_was_redacted_can_be_imported(leaky: Store, target: Store, tmp_path: Path) -> None:
    """Everything else is unchanged, and nothing is damaged."""
    out = leaky.export(tmp_path / "safe.jsonl")
    assert leaky.damage == []
    report = target.import_(tmp_path / "safe.jsonl", trust=True)
    assert report.damage == ()
    assert (report.sessions, report.messages) == (out.sessions, out.messages)
    assert report.redacted
    assert target.verify() == []
    for info in leaky.sessions():
        if info.title == "streams":
            continue  # An import interrupts its open turn.
        before, after = leaky.get(info.id), target.get(info.id)
        assert [b.seq for b in after.branches()] == [b.seq for b in before.branches()]
        for one, two in zip(before.messages(), after.messages(), strict=True):
            assert (two.id, two.seq, two.role, two.created_at) == (
                one.id,
                one.seq,
                one.role,
                one.created_at,
            )
            assert two.text == _marked(one.text)
        kept = [one for one in before.records() if not _has_secret_name(one)]
        assert [(one.id, one.seq) for one in after.records()] == [(o.id, o.seq) for o in kept]
        assert [turn.usage for turn in after.turns()] == [turn.usage for turn in before.turns()]


def _has_secret_name(record: Record) -> bool:
    return any(secret in f"{record.kind} {record.key}" for secret in SECRETS.values())


def _marked(text: str) -> str:
    for secret in SECRETS.values():
        text = text.replace(secret, MARK)
    return text


def test_redacting_again_changes_nothing(leaky: Store, target: Store, tmp_path: Path) -> None:
    """Exporting the imported sessions gives the same lines, with and without redaction."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    names = [info.id for info in leaky.sessions() if info.title != "streams"]
    leaky.export(one, *names)
    target.import_(one, trust=True)
    target.export(two, redact=None)
    assert lines_of(two) == lines_of(one)
    again = target.export(three)
    assert lines_of(three) == lines_of(one)
    assert again.review is not None
    assert (again.review.replaced, again.review.left_out) == (0, 0)


def test_every_place_is_told(leaky: Store, tmp_path: Path) -> None:
    """With its message, or only its session; a preview reveals too little to use."""
    report = leaky.export(tmp_path / "safe.jsonl")
    told = {one.where for one in report.findings}
    assert {
        *("key", "title", "scope", "agent", "model", "cwd", "metadata.a[0]", "metadata.keys"),
        *("goal.objective", "goal.summary", "goal.recap", "usage.model"),
        *("parts[0].text", "parts[1].data", "parts[2].name", "name", "provenance.ref"),
        *("metadata.note", "parts[1].text", "parts[2].data.y", "parts[0].content"),
        *("parts[3].arguments.deep[0].x", "parts[4].arguments", "parts[0].content[0].text"),
        *("parts[0].content[1].data", "turns[1].error", "turns[1].model", "turns[1].tools[0].name"),
        *("queued.parts[0].text", "queued.parts[1].data"),
        *("draft.parts[0].text", "draft.parts[1].text"),
        *("records[1].kind", "records[2].key", "records[3].data", "records[3].data.deep[0]"),
        *("records[3].files", "records[3].files.small.data", "records[3].files.large.data"),
        *("store.data.a", "store.scope"),
    } <= told
    for one in report.findings:
        if one.action != "not looked into":
            assert one.preview == f"sk-p… ({len(SECRETS['text'])} characters)"
    assert report.review is not None
    assert report.review.replaced + report.review.left_out >= len(PLACES)
    # The key, the signed thinking, two records and one of the store.
    assert report.review.left_out == 5
    assert report.review.not_looked_into == 3


# --------------------------------------------------------------------------------- particular ones


def test_signed_thinking_is_left_out_whole(source: Store, target: Store, tmp_path: Path) -> None:
    """A provider would reject an edit; signed thinking without secrets stays byte for byte."""
    session = source.session("signed")
    session.append(
        Message.assistant([Thinking("fine", "s1"), "said"]),
        Message.assistant([Thinking(f"it is {key(1)}", "s2"), Thinking("more", "s3"), "said"]),
    )
    report = source.export(tmp_path / "x", "signed")
    (one,) = report.findings
    assert (one.action, one.seq, one.where) == ("left out", 2, "parts[0].text")
    target.import_(tmp_path / "x", trust=True)
    first, second = target.session("signed").messages()
    assert first.parts == (Thinking("fine", "s1"), Text("said"))
    assert second.parts == (Text("said"),)


def test_a_text_file_gets_other_bytes_and_another_name(
    source: Store, target: Store, tmp_path: Path
) -> None:
    """Each file once, by the hash of its new data; binary data is unchanged."""
    data = f"a\ntoken {key(1)}\nb".encode()
    session = source.session("files")
    session.append(
        Message.user([File("a.txt", None, data), File("b.png", "image/png", PNG)]),
        Message.user([File("same.txt", None, data), File("c.txt", None, b"harmless")]),
    )
    report = source.export(tmp_path / "x", "files")
    assert report.blobs == 3
    target.import_(tmp_path / "x", trust=True)
    one, two = target.session("files").messages()
    assert target.verify() == []
    expected = data.replace(key(1).encode(), MARK.encode())
    assert [target.blob(name) for name in files(one)] == [expected, PNG]
    assert [target.blob(name) for name in files(two)] == [expected, b"harmless"]
    assert isinstance(one.parts[0], File)
    assert one.parts[0].size == len(expected)
    actions = [(one.where, one.action, one.preview) for one in report.findings]
    assert ("parts[1].data", "not looked into", f"image/png, {len(PNG)} bytes") in actions


def test_a_file_whose_data_are_lost(tmp_path: Path) -> None:
    """It is reported as damage, and as not looked into."""
    with holdfast.open(tmp_path / "s.db") as store:
        store.session("k").append(Message.user(["x", File("a.txt", None, b"data")]))
    with apsw.Connection(str(tmp_path / "s.db")) as database:
        database.execute("DELETE FROM blob_uses; DELETE FROM blobs")
    database.close()
    with holdfast.open(tmp_path / "s.db") as store:
        report = store.export(tmp_path / "x")
        assert len(store.damage) == 1
    assert [one.action for one in report.findings] == ["not looked into"]


def test_keys_that_hold_secrets_are_left_out(target: Store, tmp_path: Path) -> None:
    """Two keys could get the same mark; both sessions are exported."""
    with holdfast.open("memory:") as store:
        for n in range(2):
            store.session(key(n), title=f"t{n}").append(Message.user("x"))
        report = store.export(tmp_path / "x")
    assert [(one.where, one.action) for one in report.findings] == [("key", "left out")] * 2
    assert target.import_(tmp_path / "x", trust=True).damage == ()
    assert [(info.key, info.title) for info in target.sessions()] == [(None, "t1"), (None, "t0")]


def test_a_title_that_marks_make_too_long(source: Store, target: Store, tmp_path: Path) -> None:
    """It is left out: an import would reject the session's line."""
    title = " ".join(f"password=Zx{n % 10}qT9w" for n in range(227))
    source.session("long", title=title)
    report = source.export(tmp_path / "x", "long")
    assert report.findings[-1].action == "left out"
    assert target.import_(tmp_path / "x", trust=True).damage == ()
    assert target.session("long").info().title is None
    target.export(tmp_path / "again")
    assert lines_of(tmp_path / "again") == lines_of(tmp_path / "x")


def test_models_whose_names_become_one_are_added_up(
    source: Store, target: Store, tmp_path: Path
) -> None:
    """The total usage is unchanged."""
    session = source.session("spent")
    for n in range(3):
        model = f"https://bot:Pw{n}xK9qLm2@host/m"
        session.append(Message.assistant("x", model=model, usage=Usage(10, n), cost=Decimal("0.1")))
    source.export(tmp_path / "x", "spent")
    assert target.import_(tmp_path / "x", trust=True).damage == ()
    before, after = session.usage(), target.session("spent").usage()
    assert (after.usage, after.cost) == (before.usage, before.cost)
    assert (len(before.by_model), len(after.by_model)) == (3, 1)


def test_a_draft_without_secrets_stays_in_its_pieces(source: Store, tmp_path: Path) -> None:
    """Only a draft with a secret is joined."""
    with source.session("stream").turn() as turn:
        reply = turn.stream()
        for word in ("one ", "two ", "three"):
            reply.write(word)
            reply.flush()
        source.export(tmp_path / "whole", "stream", redact=None)
        source.export(tmp_path / "safe", "stream")
        assert lines_of(tmp_path / "safe") == lines_of(tmp_path / "whole")
        assert sum(line["type"] == "draft" for line in records(tmp_path / "safe")) == 4


def test_a_draft_that_is_recovered_elsewhere(leaky: Store, target: Store, tmp_path: Path) -> None:
    """The draft becomes a partial message, with marks and its cost."""
    (streams,) = [info.id for info in leaky.sessions() if info.title == "streams"]
    leaky.export(tmp_path / "x", streams)
    target.import_(tmp_path / "x", trust=True)
    partial = target.get(streams).messages()[-1]
    assert partial.status == "partial"
    assert partial.parts == (Thinking(f"it is {MARK}!"), Text(f"and {MARK} is the other"))
    assert (partial.model, partial.usage, partial.cost) == (MARK, Usage(3, 5), Decimal("0.5"))


def test_what_cannot_be_read_is_redacted_as_well(tmp_path: Path, target: Store) -> None:
    """A placeholder contains the stored bytes."""
    with holdfast.open(tmp_path / "s.db") as store:
        store.session("k").append(Message.user(f"it is {key(1)} and harmless"))
    with apsw.Connection(str(tmp_path / "s.db")) as database:
        database.execute("UPDATE messages SET body = replace(body, 'harmless', 'harmful')")
    database.close()
    with holdfast.open(tmp_path / "s.db") as store:
        store.export(tmp_path / "x")
    assert key(1).encode() not in (tmp_path / "x").read_bytes()
    target.import_(tmp_path / "x", trust=True)
    (message,) = target.session("k").messages()
    assert message.status == "damaged"
    assert isinstance(message.parts[0], Raw)
    assert f"it is {MARK} and harmful" in str(message.parts[0].data)


def test_a_message_that_marks_make_too_long_for_a_line() -> None:
    """Its parts are dropped, because the line would be too long to import."""
    redactor = Redactor(detectors_named(), longest=6_000)
    text = " ".join(f"password=Zx{n % 10}qT9w" for n in range(250))
    message = Message.user([text, File("a.txt", None, b"x", size=1)], name="n")
    now, fresh = redactor.message("a" * 16, message, lambda _: None)
    assert (now.id, now.role, fresh) == (message.id, "user", {})
    assert now.parts == (Text("[redacted: too long]"),)
    review = redactor.review()
    assert review is not None
    assert (review.replaced, review.left_out) == (250, 1)
    short, _ = redactor.message("a" * 16, Message.user(text[:200]), lambda _: None)
    assert short.text.startswith("password=[redacted: password] ")


def test_a_fork_that_differs_from_its_parent_here(source: Store, tmp_path: Path) -> None:
    """The redacted parent does not join the unredacted one: it gets an id of its own."""
    parent = source.session("parent")
    parent.append(Message.user(f"it is {key(1)}"))
    fork = parent.fork(key="child")
    fork.append(Message.user("on"))
    source.export(tmp_path / "x", fork.id)
    source.purge(fork.id)
    report = source.import_(tmp_path / "x", trust=True)
    assert report.sessions == 1
    assert [damage.session_id for damage in report.damage] == [parent.id]
    assert "has another history here" in report.damage[0].what
    assert [m.text for m in source.get(fork.id).messages()] == [f"it is {MARK}", "on"]
    assert [m.text for m in parent.messages()] == [f"it is {key(1)}"]
    assert source.verify() == []


# -------------------------------------------------------------------------------------- choosing

_MAIL: Final = "write to nora.lund@fjord-mail.no"


@pytest.mark.parametrize(
    ("redact", "found"),
    [
        ("default", {"openai-key"}),
        ("all", {"openai-key", "email"}),
        ("email", {"email"}),
        (["email"], {"email"}),
        (("default", "email"), {"openai-key", "email"}),
        (DEFAULT_NAMES, {"openai-key"}),
        (ALL_NAMES, {"openai-key", "email"}),
        ("github-token", set()),
        (None, set()),
        ((), set()),
    ],
)
def test_detectors_are_chosen_by_name(
    source: Store,
    tmp_path: Path,
    redact: str | Sequence[str] | None,
    found: set[str],
) -> None:
    """Other secrets stay; a file written without detectors is not marked as redacted."""
    source.session("k").append(Message.user(f"{_MAIL} {key(1)}"))
    report = source.export(tmp_path / "x", "k", redact=redact)
    assert {one.detector for one in report.findings} == found
    text = (tmp_path / "x").read_text()
    assert (key(1) in text) == ("openai-key" not in found)
    assert (_MAIL in text) == ("email" not in found)
    assert (report.review is None) == (not redact)
    assert records(tmp_path / "x")[0].get("redacted", False) == bool(redact)
    review = source.review("k", redact=redact)
    assert review.findings == report.findings


@pytest.mark.parametrize("redact", ["nothing", ["email", "mail"], 5, [5], True, b"email"])
def test_detectors_that_there_are_not(source: Store, tmp_path: Path, redact: Any) -> None:  # noqa: ANN401
    """Nothing is written: a typing error must not leak secrets."""
    with pytest.raises(BadQuery, match=r"there is no detector|expected names of detectors"):
        source.export(tmp_path / "x", redact=redact)
    with pytest.raises(BadQuery):
        source.review(redact=redact)
    assert not (tmp_path / "x").exists()


# -------------------------------------------------------------------------------------- reviewing


def test_a_review_writes_nothing(leaky: Store, tmp_path: Path) -> None:
    """It returns what the export will report."""
    before = sorted(path.name for path in tmp_path.iterdir())
    told: list[tuple[int, int]] = []
    review = leaky.review(progress=lambda *at: told.append(at))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    report = leaky.export(tmp_path / "x")
    assert report.review == review
    assert told[-1] == (report.messages, report.messages)
    assert leaky.review(leaky.sessions().items[-1].id).replaced < review.replaced


def test_a_review_of_a_store_for_reading(tmp_path: Path) -> None:
    """Also of named sessions, including one that does not exist."""
    with holdfast.open(tmp_path / "s.db") as store:
        store.session("k").append(Message.user(key(1)))
        id = store.session("k").id
    with holdfast.open(tmp_path / "s.db", readonly=True) as store:
        (one,) = store.review("k").findings
        assert one == Redaction(
            session_id=id,
            message_id=store.get("k").messages()[0].id,
            seq=1,
            where="parts[0].text",
            detector="openai-key",
            preview=f"sk-p… ({len(key(1))} characters)",
            action="replaced",
        )
        with pytest.raises(holdfast.errors.SessionNotFound):
            store.review("nobody")


def test_more_than_anybody_reads(tmp_path: Path) -> None:
    """All are counted and replaced, the first ten thousand listed."""
    many = "\n".join(f"password=Zx{n:05}qT" for n in range(MAX_FINDINGS + 5))
    with holdfast.open("memory:") as store:
        store.session("k").append(Message.user(many))
        report = store.export(tmp_path / "x")
    assert report.review is not None
    assert (report.review.replaced, len(report.findings)) == (MAX_FINDINGS + 5, MAX_FINDINGS)
    assert b"Zx10004qT" not in (tmp_path / "x").read_bytes()


def test_a_refused_export_tells_nothing_and_writes_nothing(source: Store, tmp_path: Path) -> None:
    """An existing file is unchanged."""
    (tmp_path / "x").write_text("mine")
    with pytest.raises(Invalid, match="exists already"):
        source.export(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "mine"


def test_the_async_twin(tmp_path: Path) -> None:
    """It takes the same arguments and returns the same results."""

    async def run() -> None:
        async with holdfast.open_async("memory:") as store:
            session = await store.session("k")
            await session.append(Message.user(key(1)))
            review = await store.review("k", redact=["openai-key"])
            report = await store.export(tmp_path / "x", "k", redact="default")
            assert report.review == review
            whole = await store.export(tmp_path / "y", redact=None)
            assert (whole.review, whole.findings) == (None, ())

    asyncio.run(run())


# ---------------------------------------------------------------------------------- whatever it is

_words = [f" {key(1)} ", " password=Zx1qT9wK ", "a", " ", '"', "\\", "\n", "é", "\ud800", "key:"]
_texts = st.lists(st.sampled_from(_words) | st.characters(), max_size=4).map("".join)
_json = st.recursive(
    st.none() | st.integers(-9, 9) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_pieces = st.one_of(
    st.builds(Text, _texts),
    st.builds(Raw, _texts, _json),
    st.builds(lambda text: File("a.txt", None, text.encode("utf-8", "replace")), _texts),
)
_parts = st.one_of(
    _pieces,
    st.builds(Thinking, _texts, st.sampled_from([None, "s"])),
    st.builds(ToolCall, st.just("c"), _texts, _json),
    st.builds(ToolResult, st.just("c"), _texts | st.lists(_pieces, max_size=2).map(tuple)),
)
_said = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    parts=st.lists(_parts, max_size=3).map(tuple),
    name=st.none() | _texts,
    metadata=st.dictionaries(_texts, _json, max_size=2),
)


@settings(max_examples=60)
@given(st.lists(_said, min_size=1, max_size=4), _said, _texts, st.dictionaries(_texts, _json))
def test_whatever_was_said_comes_without_secrets(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[Message],
    waiting: Message,
    title: str,
    metadata: dict[str, Any],
) -> None:
    """The file is valid, redacting twice changes nothing, and without findings nothing differs."""
    folder = tmp_path_factory.mktemp("any")
    with holdfast.open("memory:") as store, holdfast.open("memory:") as other:
        session = store.session("k", title=title or None, metadata=metadata)
        session.append(*messages)
        session.enqueue(waiting)
        report = store.export(folder / "safe")
        store.export(folder / "whole", redact=None)
        assert key(1).encode() not in words(folder / "safe")
        assert other.import_(folder / "safe", trust=True).damage == ()
        assert other.verify() == []
        other.export(folder / "again")
        assert lines_of(folder / "again") == lines_of(folder / "safe")
        assert report.review is not None
        if not report.review.replaced and not report.review.left_out:
            assert lines_of(folder / "safe") == lines_of(folder / "whole")
            assert shown(other) == shown(store)
