"""Files and large parts: stored once by content, returned exactly."""

from __future__ import annotations

import hashlib

import pytest

from holdfast.errors import BadMessage, BadQuery, NotFound
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import File, Message, Raw, Text, Thinking, ToolCall, ToolResult

_DATA = bytes(range(256)) * 3
_LARGE = 64 * 1024


def sha(data: bytes) -> str:
    """Return the hash by which the store names data."""
    return hashlib.sha256(data).hexdigest()


class BlobTests(StoreFixtures):
    """`File(data=…)` in, `store.blob(sha)` out."""

    @pytest.mark.parametrize("data", [_DATA, b"", b"\0", b"\xff\xfe", bytearray(b"abc")])
    def test_a_file_goes_in_with_data_and_comes_out_by_hash(
        self, store: Store, session: Session, data: bytes
    ) -> None:
        """The message has name, type, hash and size; `Store.blob` returns the bytes."""
        session.append(Message.user(["look", File(name="a.bin", mime="x/y", data=data)]))
        again = self.reopen(store)
        part = again.session("the session").messages()[0].parts[1]
        assert part == File(name="a.bin", mime="x/y", sha256=sha(data), size=len(data))
        assert again.blob(sha(data)) == bytes(data)

    def test_a_turn_gives_the_message_as_it_is_stored(self, session: Session) -> None:
        """What a turn returns equals what is read."""
        with session.turn() as turn:
            given = turn.user([File(data=_DATA)])
        assert [given] == session.messages()

    def test_files_inside_tool_results(self, store: Store, session: Session) -> None:
        """They are stored like any other file."""
        session.append(Message.tool("c", [Text("shot"), File(name="s.png", data=_DATA)]))
        again = self.reopen(store)
        (result,) = again.session("the session").messages()[0].tool_results
        assert result.content[1] == File(name="s.png", sha256=sha(_DATA), size=len(_DATA))
        assert again.blob(sha(_DATA)) == _DATA

    def test_the_same_data_is_kept_once(self, store: Store) -> None:
        """Repeated data in one message, in one session or in several is one blob."""
        for key in ("one", "two"):
            store.session(key).append(Message.user([File(data=_DATA), File(name="b", data=_DATA)]))
        stats = store.stats()
        assert (stats.blobs, stats.blob_bytes) == (1, len(_DATA))

    def test_a_stored_file_can_be_named_by_its_hash(self, store: Store, session: Session) -> None:
        """What was read can be appended elsewhere without its data."""
        session.append(Message.user([File(name="a", data=_DATA)]))
        part = session.messages()[0].parts[0]
        other = store.session("other")
        other.append(Message.user([part]), Message.user([File(sha256=sha(_DATA))]))
        assert other.messages()[0].parts == (part,)
        assert other.messages()[1].parts == (File(sha256=sha(_DATA)),)

    def test_a_read_message_can_be_appended_again(self, session: Session) -> None:
        """Reading and appending the same message is a retry, files and large parts included."""
        session.append(Message.user(["x" * _LARGE * 2, File(data=_DATA)]))
        (read,) = session.messages()
        assert session.append(read).seq == 1
        assert session.messages() == [read]

    def test_a_file_without_its_data_is_refused(self, session: Session) -> None:
        """A hash without stored data would be a file that cannot be read."""
        unknown = File(sha256=sha(b"never stored"))
        for message in (Message.user([unknown]), Message.tool("c", [unknown])):
            with pytest.raises(BadMessage):
                session.append(Message.user("before"), message)
            with pytest.raises(BadMessage):
                session.enqueue(message)
        assert session.messages() == []

    def test_one_message_may_bring_what_the_next_names(self, session: Session) -> None:
        """A hash may name data of an earlier message of the batch, or the batch is refused."""
        named = Message.user([File(sha256=sha(_DATA))])
        try:
            session.append(Message.user([File(data=_DATA)]), named)
        except BadMessage:
            assert session.messages() == []
        else:
            assert [m.parts[0].sha256 for m in session.messages()] == [sha(_DATA)] * 2  # type: ignore[union-attr]

    def test_several_blobs_are_read_together(self, store: Store, session: Session) -> None:
        """Each once, in the order given; all of those that are missing are named."""
        data = {sha(name): name for name in (b"", *(b"%d" % n for n in range(200)))}
        session.append(Message.user([File(data=name) for name in data.values()]))
        names = list(data)[::-1]
        assert list(store.blobs(*names, *names).items()) == [(name, data[name]) for name in names]
        assert store.blobs() == {}
        missing = [sha(b"never stored"), "\0", "nonsense"]
        with pytest.raises(NotFound) as caught:
            store.blobs(names[0], *missing)
        assert all(name in str(caught.value) for name in missing)
        assert names[0] not in str(caught.value)
        with pytest.raises(BadQuery, match="sha256"):
            store.blobs(names[0], b"x")  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["0" * 64, "", "nonsense", "\0", "\ud800"])
    def test_an_unknown_blob_is_not_found(self, store: Store, name: str) -> None:
        """An unknown hash raises; it never returns empty bytes."""
        with pytest.raises(NotFound):
            store.blob(name)

    @pytest.mark.parametrize("size", [_LARGE - 20, _LARGE, _LARGE + 1, 300_000])
    @pytest.mark.parametrize("letter", ["x", "é", "\0", "\ud800"])
    def test_large_parts_come_back_whole(self, store: Store, size: int, letter: str) -> None:
        """Every kind of part that can be large, below and above 64 KiB."""
        text = letter * size
        message = Message(
            role="assistant",
            parts=(
                Text(text),
                Thinking(text, "s"),
                ToolCall("c", "n", {"k": text}),
                ToolResult("c", text),
                ToolResult("d", (Text(text), File(data=_DATA, sha256=sha(_DATA)))),
                Raw("x", [text]),
            ),
        )
        store.session("s").append(message, Message.user("behind"))
        found, behind = self.reopen(store).session("s").messages()
        assert found.parts[:4] == message.parts[:4]
        assert found.parts[5] == message.parts[5]
        assert found.tool_results[1].text == text
        assert behind.text == "behind"

    def test_large_metadata(self, store: Store) -> None:
        """Metadata has no limit of its own."""
        message = Message.user("a", metadata={"k": "x" * 1_000_000})
        store.session("s").append(message)
        assert self.reopen(store).session("s").messages()[0].metadata == message.metadata

    @pytest.mark.long
    @pytest.mark.parametrize("letter", ["x", "\ud800"])
    def test_a_message_of_50_mb(self, store: Store, letter: str) -> None:
        """A message of 50 MB is stored and read back, as text and as a file."""
        text, data = letter * 50_000_000, b"y" * 50_000_000
        store.session("s").append(Message.user([text, File(data=data)]))
        again = self.reopen(store)
        (found,) = again.session("s").messages()
        assert found.text == text
        assert again.blob(sha(data)) == data
