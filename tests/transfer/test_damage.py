"""A damaged line affects only itself: the rest is imported, and the report names the line."""

from pathlib import Path

import pytest

from holdfast import File, Message, Store, codec
from holdfast.clock import EPOCH
from holdfast.session import number_of
from holdfast.storage.protocol import Transaction
from holdfast.storage.rows import BlobUse
from holdfast.values import Damage, ImportReport, Raw
from tests.transfer.edits import change, find, flip, put
from tests.transfer.views import shown


def _texts(store: Store, key: str = "talk") -> list[str]:
    return [message.text for message in store.session(key, create=False).messages()]


def _lines(report: ImportReport) -> list[str]:
    return [damage.what for damage in report.damage]


# ------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("kind", ["flipped", "not JSON", "not UTF-8", "empty", "no checksum"])
def test_a_damaged_message_costs_only_itself(exported: Path, target: Store, kind: str) -> None:
    """A placeholder with the damaged line takes its seq; every other message keeps its seq."""
    at = find(exported, type="message", branch=1, seq=2)
    if kind == "flipped":
        raw = flip(exported, at)
    else:
        whole = exported.read_bytes().splitlines(keepends=True)[at]
        raw = {
            "not JSON": b'{"type":"message",,}\n',
            "not UTF-8": whole[:80] + b"\xff\xfe" + whole[80:],
            "empty": b"\n",
            "no checksum": whole[:-20] + b"}\n",
        }[kind]
        put(exported, at, raw)
    report = target.import_(exported, trust=True)
    assert (report.sessions, report.skipped) == (2, ())
    (damage,) = report.damage
    session = target.session("talk", create=False)
    assert (damage.session_id, damage.seq) == (session.id, 2)
    assert damage.what.startswith(f"line {at + 1} ")
    messages = session.messages()
    assert [message.seq for message in messages] == [1, 2, 3, 4, 5, 6]
    assert [message.status == "damaged" for message in messages] == [False, True] + [False] * 4
    assert messages[1].parts == (
        Raw("damaged", raw.decode("utf-8", "backslashreplace").removesuffix("\n")),
    )
    assert [m.text for m in (messages[0], *messages[2:])] == [
        "one", "three", "four", "other five", "six",
    ]  # fmt: skip
    assert [message.status for message in target.get("fork").messages()] == [
        "complete", "damaged", "complete", "complete", "complete",
    ]  # fmt: skip
    assert target.verify() == []


def test_a_message_whose_line_is_gone_is_missed(exported: Path, target: Store) -> None:
    """Its seq is not reused for the next message."""
    put(exported, find(exported, type="message", branch=1, seq=3), b"")
    report = target.import_(exported, trust=True)
    assert "messages 3 to 3 are missing in the file" in _lines(report)
    assert any("1 lines are missing" in what for what in _lines(report))
    messages = target.session("talk", create=False).messages()
    assert [message.seq for message in messages] == [1, 2, 3, 4, 5, 6]
    assert messages[2].status == "damaged"
    assert messages[2].parts == (Raw("damaged", None),)
    assert target.verify() == []


def test_several_lines_in_a_row(exported: Path, target: Store) -> None:
    """Each becomes a placeholder with its own seq."""
    first = find(exported, type="message", branch=1, seq=1)
    raw = [flip(exported, first + n) for n in range(4)]
    report = target.import_(exported, trust=True)
    assert [damage.seq for damage in report.damage] == [1, 2, 3, 4]
    messages = target.session("talk", create=False).messages()
    assert [message.parts[0] for message in messages[:4]] == [
        Raw("damaged", line.decode("utf-8", "backslashreplace").removesuffix("\n")) for line in raw
    ]
    assert target.session("talk", create=False).info().preview == "other five"
    assert target.verify() == []


def test_the_last_message_of_a_branch(exported: Path, target: Store) -> None:
    """A branch states its last seq, so a loss at its end is detected, too."""
    at = find(exported, type="blob") + 1
    assert b'"seq":5' in exported.read_bytes().splitlines()[at]
    flip(exported, at)
    flip(exported, find(exported, type="message", branch=2, seq=6))
    report = target.import_(exported, trust=True)
    assert [damage.seq for damage in report.damage] == [5, 6]
    session = target.session("talk", create=False)
    assert [b.seq for b in session.branches()] == [5, 6]
    assert session.messages(branch=1)[-1].status == "damaged"
    assert session.messages()[-1].status == "damaged"
    assert target.verify() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("role", "root"),
        ("role", 7),
        ("at", "yesterday"),
        ("at", "2024-01-01T00:00:00"),
        ("parts", [{"type": "os.system", "text": "x"}]),
        ("parts", [{"type": "text", "text": 7}]),
        ("parts", [{"type": "file", "sha256": "../../etc/passwd"}]),
        ("metadata", {"x": float("nan")}),
        ("metadata", {"x": 1e999}),
        ("usage", {"input": -1}),
        ("cost", "NaN"),
        ("cost", "1e30"),
        ("turn", 0),
        ("covers", "x"),
        ("unknown", "field"),
        ("id", ""),
        ("id", "x" * 5000),
    ],
)
def test_a_message_that_nobody_could_have_stored(
    exported: Path, target: Store, field: str, value: object
) -> None:
    """Also with a valid checksum: imported messages are validated like appended ones."""
    at = find(exported, type="message", branch=1, seq=2)
    change(exported, at, lambda record: record.update({field: value}))
    report = target.import_(exported, trust=True)
    assert report.sessions == 2
    places = [(damage.seq, damage.what.split()[1]) for damage in report.damage if damage.seq]
    assert places == [(2, str(at + 1))]
    assert target.session("talk", create=False).messages()[1].status == "damaged"
    assert target.verify() == []


def test_two_messages_of_one_id(exported: Path, target: Store) -> None:
    """An id occurs once in a history; the later message becomes a placeholder."""
    first = find(exported, type="message", branch=1, seq=1)
    wanted: list[str] = []
    change(exported, first, lambda record: wanted.append(record["id"]))
    second = find(exported, type="message", branch=2, seq=6)
    change(exported, second, lambda record: record.update(id=wanted[0]))
    report = target.import_(exported, trust=True)
    assert any("message 6 has the id of another message" in what for what in _lines(report))
    session = target.session("talk", create=False)
    assert [message.status for message in session.messages()] == ["complete"] * 5 + ["damaged"]
    assert session.append(Message.user("one", id=wanted[0])).seq == 1
    assert target.verify() == []


def test_a_message_out_of_place(exported: Path, target: Store) -> None:
    """A message that occurs twice is imported once."""
    at = find(exported, type="message", branch=1, seq=2)
    line = exported.read_bytes().splitlines(keepends=True)[at]
    put(exported, at, line + line)
    report = target.import_(exported, trust=True)
    assert f"line {at + 2} is out of order" in _lines(report)
    assert _texts(target) == ["one", "two", "three", "four", "other five", "six"]
    assert target.verify() == []


# ---------------------------------------------------------------------------- everything else


@pytest.mark.parametrize("kind", ["session", "branch", "end"])
def test_what_a_session_is_stands_twice(
    exported: Path, target: Store, source: Store, kind: str
) -> None:
    """If one of the two lines is damaged, nothing is lost except, with the last, the list order."""
    lines = exported.read_bytes().splitlines()
    for at, line in enumerate(lines):
        if line.startswith(b'{"type":"%s"' % kind.encode()):
            flip(exported, at)
    report = target.import_(exported, trust=True)
    assert report.sessions == 2
    assert {what.split()[0] for what in _lines(report)} == {"line"}
    one, two = shown(target), shown(source)
    if kind != "end":
        assert one == two
    for session in two["each"]:
        for name in ("histories", "branches", "turns", "queued", "usage", "lineage"):
            assert one["each"][session][name] == two["each"][session][name]
    assert target.verify() == []


def test_who_it_is_is_lost(exported: Path, target: Store) -> None:
    """With both lines damaged the history is still imported, without its title and other fields."""
    session = find(exported, type="session", key="talk")
    end = min(
        at
        for at, line in enumerate(exported.read_bytes().splitlines())
        if line.startswith(b'{"type":"end"')
    )
    flip(exported, session)
    flip(exported, end)
    report = target.import_(exported, trust=True)
    assert report.sessions == 2
    assert any("its title and other fields were lost" in what for what in _lines(report))
    (link, _) = target.get("fork").lineage()
    nameless = target.get(link.session_id)
    assert (nameless.key, nameless.info().title) == (None, None)
    assert len(nameless.messages()) == 6
    assert len(nameless.turns()) == 1
    assert target.verify() == []


def test_a_branch_that_is_lost_twice(exported: Path, target: Store, source: Store) -> None:
    """Its start is unknown: its messages are reported and skipped; the others are imported."""
    lines = exported.read_bytes().splitlines()
    flip(exported, next(at for at, line in enumerate(lines) if line.startswith(b'{"type":"end"')))
    flip(exported, find(exported, type="branch", number=2))
    report = target.import_(exported, trust=True)
    assert "the start of branch 2 was lost; it was not imported" in _lines(report)
    assert _texts(target) == ["one", "two", "three", "four", "five"]
    assert _texts(target, "fork") == ["one", "two", "three", "four", "forked"]
    assert target.verify() == []


def test_no_branch_is_left(exported: Path, target: Store) -> None:
    """A session without branches is skipped; its fork is imported with the shared messages."""
    lines = exported.read_bytes().splitlines()
    flip(exported, next(at for at, line in enumerate(lines) if line.startswith(b'{"type":"end"')))
    flip(exported, find(exported, type="branch", number=2))
    flip(exported, find(exported, type="branch", number=1, seq=5, reason="start"))
    report = target.import_(exported, trust=True)
    assert report.sessions == 1
    assert any("all of its branches are missing" in what for what in _lines(report))
    assert _texts(target, "fork") == ["one", "two", "three", "four", "forked"]
    assert target.verify() == []


@pytest.mark.parametrize("kind", ["turn", "usage", "queued"])
def test_what_else_is_damaged_costs_itself(exported: Path, target: Store, kind: str) -> None:
    """A damaged turn, usage or queued message is reported; all messages are imported."""
    at = find(exported, type=kind)
    flip(exported, at)
    report = target.import_(exported, trust=True)
    assert [damage.what.split()[1] for damage in report.damage] == [str(at + 1)]
    session = target.session("talk", create=False)
    assert _texts(target) == ["one", "two", "three", "four", "other five", "six"]
    assert (len(session.turns()), len(session.queued())) == (kind != "turn", kind != "queued")
    assert session.usage().usage.input == (0 if kind == "usage" else 3)
    with session.turn() as turn:
        assert turn.id.endswith(".2"), "a number that was taken is not given again"
    assert target.verify() == []


def test_a_file_whose_data_is_damaged(exported: Path, target: Store) -> None:
    """The message is imported, and still names its file."""
    at = find(exported, type="blob")
    flip(exported, at)
    report = target.import_(exported, trust=True)
    assert f"line {at + 1} does not match its checksum" in _lines(report)
    session = target.session("talk", create=False)
    message = session.messages(branch=1)[-1]
    (file,) = [part for part in message.parts if isinstance(part, File)]
    what = f"the data of a file, {file.sha256}, is missing"
    assert Damage(what=what, session_id=session.id, seq=5) in report.damage
    assert target.verify() == []
    assert target.purge(session.id).blobs == 0


def test_a_fork_whose_parent_was_cut_out(exported: Path, target: Store) -> None:
    """Its own messages are imported; each shared one becomes a placeholder."""
    lines = exported.read_bytes().splitlines(keepends=True)
    ends = [at for at, line in enumerate(lines) if line.startswith(b'{"type":"end"')]
    exported.write_bytes(b"".join([lines[0], *lines[ends[0] + 1 :]]))
    report = target.import_(exported, trust=True)
    assert report.sessions == 1
    assert any("the session is not in the file" in what for what in _lines(report))
    messages = target.session("fork", create=False).messages()
    assert [message.status for message in messages] == ["damaged"] * 4 + ["complete"]
    assert messages[4].text == "forked"
    assert target.verify() == []


# --------------------------------------------------------------------------------------- cut off


def test_a_file_that_is_cut_off_anywhere(exported: Path, tmp_path: Path) -> None:
    """All before the cut is imported, each session valid; only the first line is required."""
    import holdfast  # noqa: PLC0415 - many stores, opened here

    whole = exported.read_bytes()
    full = whole.splitlines(keepends=True)
    for size in range(len(full[0]), len(whole), 97):
        exported.write_bytes(whole[:size])
        with holdfast.open("memory:") as store:
            report = store.import_(exported, trust=True)
            assert report.damage
            assert store.verify() == []
            there = whole[:size].splitlines(keepends=True)
            messages = [line for line in there if line.startswith(b'{"type":"message"')]
            kept = sum(line.endswith(b"}\n") for line in messages)
            assert report.messages == kept
            for info in store.sessions():
                history = store.get(info.id).messages()
                assert all(message.status == "complete" for message in history)


def test_a_session_cut_off_can_be_used(exported: Path, target: Store) -> None:
    """Its history ends where the file ended, and can be continued."""
    at = find(exported, type="message", branch=2, seq=6)
    lines = exported.read_bytes().splitlines(keepends=True)
    exported.write_bytes(b"".join(lines[:at]) + lines[at][:40])
    report = target.import_(exported, trust=True)
    assert f"line {at + 1} is cut off" in _lines(report)
    assert "a session is missing at the end" in _lines(report)
    assert _texts(target) == ["one", "two", "three", "four", "other five"]
    target.session("talk").append(Message.user("new"))
    assert _texts(target)[-1] == "new"
    assert target.verify() == []


def test_what_cannot_be_read_in_the_store_is_exported_as_a_reader_gets_it(
    tmp_path: Path, target: Store
) -> None:
    """Damage in the exported store affects only the damaged message, too."""
    import apsw  # noqa: PLC0415 - to damage a store

    import holdfast  # noqa: PLC0415

    with holdfast.open(tmp_path / "source.db") as store:
        store.session("k").append(*[Message.user(f"m{n}") for n in range(3)])
    with apsw.Connection(str(tmp_path / "source.db")) as database:
        database.execute("UPDATE messages SET body = replace(body, 'm1', 'mX')")
    database.close()
    with holdfast.open(tmp_path / "source.db") as store:
        assert store.export(tmp_path / "out.jsonl").messages == 3
        assert [damage.seq for damage in store.damage] == [2]
        before = store.session("k").messages()
    assert target.import_(tmp_path / "out.jsonl", trust=True).damage == ()
    assert target.session("k").messages() == before
    assert before[1].status == "damaged"
    assert target.verify() == []


def test_an_import_does_not_refer_to_a_damaged_blob(target: Store, tmp_path: Path) -> None:
    """It stores the data of its own, which repairs the blob for the messages that had it before."""
    large, file = "of a large part " * 5_000, File(data=b"of a file")
    before = target.session("before")
    before.append(Message.user([large, file]))
    path = tmp_path / "large.jsonl"
    target.export(path, "before", redact=None)
    target.purge(before.id)
    other = target.session("other")
    other.append(Message.user([large, file]))
    hashes = [codec.sha256_hex(b"of a file"), *_large_parts(large)]

    def spoil(tx: Transaction) -> None:
        head = tx.head(number_of(other))
        assert head is not None
        tx.add_messages(head.branch, [], [BlobUse(1, name, b"wrong") for name in hashes])

    target.backend.write(spoil)
    assert [m.status for m in other.messages()] == ["damaged"]
    assert target.import_(path, trust=True).damage == ()
    for key in ("before", "other"):
        assert _texts(target, key) == [large]
    assert target.blob(hashes[0]) == b"of a file"
    assert target.verify() == []


def _large_parts(text: str) -> list[str]:
    return codec.blob_hashes(codec.encode(Message.user(text), EPOCH).body)[0]
