"""Checks of a write-ahead log: that it belongs to its store, and that SQLite reads all of it.

**Another store's log.** SQLite replays any log that lies beside a file. A log that does not
continue the one bound in the file (`wal.Binding`) is refused.

**Ignored frames.** After a crash SQLite reads a log up to the last commit before the first frame
whose checksum is wrong, and later writes over the rest. That is right for the end of a log, torn by
a power cut, and wrong for a damaged frame with acknowledged commits behind it. They differ if every
commit was synced before the next one began (no writer with `durability="process"`, see
`Binding.unsynced`): then a crash leaves at most one commit that was not synced. Its frames are
written over from the start, so what remains of it has at most one commit, and no frame behind it
continues its checksums. Two commits in one unbroken chain of checksums prove that the first of them
was synced, with everything before it: something there was damaged since.

The damage costs the damaged frame alone: `write_replay` writes a copy that SQLite reads to its end.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import apsw
import msgspec

from holdfast.errors import Damaged
from holdfast.storage.sqlite.connection import connect, frames_in_log, open_file
from holdfast.storage.sqlite.location import companion, create_private, wal_size
from holdfast.storage.sqlite.wal import (
    HEADER_BYTES,
    Binding,
    Checksum,
    Frame,
    LogFile,
    LogHeader,
    bindings_in,
    checksum,
    read_binding,
)

_MAX_ATTEMPTS: Final = 10
_MAX_GAP: Final = 32  # Frames of another log in a row, after which none of this one is expected.
_PROOF: Final = 2  # Commits in one chain that prove that the first of them was synced.
_SAMPLE: Final = 8  # Frames that are read to find out what a damaged header said.
_UNREADABLE: Final = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.FormatError)
_COPIED_BYTES: Final = 1 << 20


class IgnoredFrames(msgspec.Struct, frozen=True):
    """Frames of a log that SQLite does not read, from number `first`; 0 stands for the header.

    `commits` of them, up to frame `last`, are proven to have been synced; `damaged` is true if they
    hold acknowledged writes, so that the log must not be written over.
    """

    first: int
    frames: int
    commits: int = 0
    last: int = 0
    damaged: bool = False

    def __str__(self) -> str:
        where = f"frame {self.first}" if self.first else "its header"
        if self.damaged:
            return (
                f"the write-ahead log is damaged at {where}; "
                f"at least {self.commits} commits behind it cannot be read"
            )
        frames = "1 frame" if self.frames == 1 else f"{self.frames} frames"
        return (
            f"SQLite does not read {frames} at the end of the write-ahead log, from {where} on: "
            "a crash cut off that write, or it is in progress"
        )


# ------------------------------------------------------------------------- another store's log


def refuse_foreign_log(path: Path, vfs: str | None) -> None:
    """Raise `Damaged` if the log beside a store does not belong to it."""
    for _ in range(_MAX_ATTEMPTS):
        if not wal_size(path):
            return
        page_size, binding = _read_file_alone(path, vfs)
        if binding is None:
            return
        try:
            with LogFile(path, page_size) as log:
                header = LogHeader.decode(log.header_bytes())
                if header is None or _belongs(log, header, binding):
                    return
            # Before a log is restarted for the second time, its binding is in the file.
            if _read_file_alone(path, vfs)[1] == binding:
                break
        except FileNotFoundError:
            return
    else:
        return  # In use by other processes, which restart the log again and again.
    error = Damaged(
        f"{path.name}-wal is not the write-ahead log of {path}, but of another store or of this "
        "one at another time; was a backup copied over it? Nothing was changed. Run `holdfast "
        "restore-backup FILE` to restore a backup, or move the log away to open the file as it is."
    )
    error.add_note("`holdfast restore-backup FILE` restores a backup and sets both files aside")
    raise error


def _belongs(log: LogFile, header: LogHeader, binding: Binding) -> bool:
    """True if a log continues what is bound in the file, or holds no binding.

    Without one nothing in the log was acknowledged: the process died before it bound the log.
    """
    if header.page_size != log.page_size:
        return False
    if header.salts == binding.salts:
        return True
    frames = (frame for frame in log.frames(1) if frame.salts == header.salts)
    if _continues(_bindings(frames), binding):
        return True
    # A frame that is half written has its page from an earlier log: only whole ones are evidence.
    bound = list(_bindings(_whole_frames(log, header)))
    return not bound or _continues(bound, binding)  # It may have been bound since.


def _continues(found: Iterable[Binding], binding: Binding) -> bool:
    return any(binding.salts in (one.salts, one.previous) for one in found)


def _bindings(frames: Iterable[Frame]) -> Iterator[Binding]:
    for frame in frames:
        yield from bindings_in(frame.data)


def _whole_frames(log: LogFile, header: LogHeader) -> Iterator[Frame]:
    """Yield the frames that SQLite reads, and those of a transaction that was not committed."""
    before = header.checksum
    for frame in log.frames(1):
        before = frame.continued(before, big_endian=header.big_endian)
        if frame.salts != header.salts or frame.checksum != before:
            return
        yield frame


def _read_file_alone(path: Path, vfs: str | None) -> tuple[int, Binding | None]:
    """Return page size and binding of a file without its log; no binding if it has no valid one."""
    try:
        connection = connect(
            path, readonly=True, durability="power", busy=0, vfs=vfs, immutable=True
        )
    except _UNREADABLE:
        return 0, None  # The rest of it may be in the log.
    try:
        size: int = connection.execute("PRAGMA page_size").get
        return size, read_binding(connection)
    except _UNREADABLE:
        return 0, None
    finally:
        connection.close(force=True)


# ----------------------------------------------------------------------------- ignored frames


def find_ignored(
    connection: apsw.Connection, path: Path, vfs: str | None = None
) -> IgnoredFrames | None:
    """Return what SQLite does not read of a store's log, or `None`.

    `connection` has the store open. Other processes may use it meanwhile.
    """
    if not wal_size(path):
        return None
    # SQLite reads the log with the first page.
    connection.execute("PRAGMA user_version").fetchall()
    size: int = connection.execute("PRAGMA page_size").get
    for _ in range(_MAX_ATTEMPTS):
        try:
            with LogFile(path, size) as log:
                header, taken = log.header_bytes(), _frames_taken(connection)
                found = _Inspection(log, header, taken).run(path, vfs)
                # While the first of them stays as it is, no process writes to those behind it.
                if found is None or (
                    log.header_bytes() == header and _frames_taken(connection) == taken
                ):
                    return found
        except FileNotFoundError:
            return None
    return None


def refuse_damaged_log(connection: apsw.Connection, path: Path, vfs: str | None) -> None:
    """Raise `Damaged` if acknowledged writes lie behind a damaged frame of the log."""
    found = find_ignored(connection, path, vfs)
    if found is not None and found.damaged:
        raise Damaged(
            f"{path}: {found}. Nothing was changed. Open it with readonly=True, and copy "
            "everything into a new store with store.salvage(to) or `holdfast doctor --fix`."
        )


def _frames_taken(connection: apsw.Connection) -> int:
    """Return how many frames of the log SQLite reads; 0 if it cannot say."""
    try:
        return max(frames_in_log(connection), 0)
    except apsw.ReadOnlyError:
        return 0  # All frames are checked then.


class _Link(NamedTuple):
    """A frame that SQLite does not read, unless it was written since.

    It is `whole` if it continues the checksum of the frame before it, and `ours` if it was written
    to this log at all: a write that was lost leaves a frame of an earlier log.
    """

    number: int
    frame: Frame
    whole: bool
    ours: bool


class _Inspection:
    """One reading of a log of which SQLite reads the first `taken` frames."""

    def __init__(self, log: LogFile, header: bytes, taken: int) -> None:
        self._log = log
        self._header_bytes = header
        self._header = LogHeader.decode(header)
        self._taken = taken if self._header else 0
        self.salts = self._header.salts if self._header else self._common_salts()
        self._big_endian = self._header.big_endian if self._header else self._guess_byte_order()

    def run(self, path: Path, vfs: str | None) -> IgnoredFrames | None:
        """Return what SQLite does not read, and whether it is damage."""
        last, frames, commits = self._count()
        if commits < _PROOF:
            frames = frames or self._has_wrong_salts(self._taken + 1)
            return IgnoredFrames(self._taken + 1, frames) if frames else None
        found = self._find_proof(last)
        if found is None or not found.commits:
            return found
        damaged = self._was_synced(found.last, path, vfs) and (
            self._taken > 0 or self._adds_something(found.last, path, vfs)
        )
        return msgspec.structs.replace(found, damaged=damaged)

    def _count(self) -> tuple[int, int, int]:
        """Return the last frame of this log, and how many frames and commits SQLite leaves out."""
        last = number = self._taken
        frames = commits = 0
        end = self._log.frame_count()
        while number < end and number - last < _MAX_GAP:
            number += 1
            commit, salts = self._log.commit_and_salts(number)
            if salts == self.salts:
                last, frames, commits = number, frames + 1, commits + bool(commit)
        return last, frames, commits

    def _has_wrong_salts(self, number: int) -> bool:
        """True if a frame is of this log in all but its salts, which the checksum leaves out."""
        frame = self._log.frame(number)
        return (
            frame is not None
            and self._header is not None
            and frame.checksum == self._continue(frame, self._checksum_of(number - 1))
        )

    def _find_proof(self, last: int) -> IgnoredFrames | None:
        """Follow the checksums from what SQLite reads up to frame `last`."""
        first: int | None = None if self._header else 0
        frames = commits = proven = end = 0
        for number, frame, whole, _ in self.links(last):
            if first is None:
                if whole:  # Written since SQLite counted them, or not committed yet.
                    self._taken = number if frame.commit else self._taken
                    continue
                first = number
            frames += 1
            commits = commits + bool(frame.commit) if whole else 0
            if whole and frame.commit and commits >= _PROOF:
                proven, end = proven + (commits if commits == _PROOF else 1), number
        return None if first is None else IgnoredFrames(first, frames, proven, end)

    def links(self, last: int) -> Iterator[_Link]:
        """Yield the frames that SQLite does not read, up to frame `last`.

        A frame may continue the checksum that is stored in the one before it, or the one that this
        should have: the damage may be in either.
        """
        stored = self._checksum_of(self._taken)
        expected = stored
        if self._header is None:
            start = self._header_bytes[: HEADER_BYTES - 8]
            expected = checksum(start, (0, 0), big_endian=self._big_endian)
        for number, frame in enumerate(self._log.frames(self._taken + 1, last), self._taken + 1):
            continued = self._continue(frame, stored)
            whole = frame.checksum == continued or (
                expected != stored and frame.checksum == self._continue(frame, expected)
            )
            salted = frame.salts == self.salts
            yield _Link(number, frame, whole and salted, ours=whole or salted)
            stored, expected = frame.checksum, frame.checksum if whole else continued

    def _continue(self, frame: Frame, before: Checksum) -> Checksum:
        return frame.continued(before, big_endian=self._big_endian)

    def _checksum_of(self, number: int) -> Checksum:
        frame = self._log.frame(number) if number else None
        if frame is not None:
            return frame.checksum
        first, second = struct.unpack(">2I", self._header_bytes[HEADER_BYTES - 8 : HEADER_BYTES])
        return first, second

    def _common_salts(self) -> bytes:
        salts = Counter(frame.salts for frame in self._log.frames(1, _SAMPLE))
        return salts.most_common(1)[0][0] if salts else b""

    def _guess_byte_order(self) -> bool:
        """Return whether the checksums are big-endian, by those of the first frames."""
        frames = list(self._log.frames(1, _SAMPLE))
        return any(
            after.checksum == after.continued(before.checksum, big_endian=True)
            for before, after in pairwise(frames)
        )

    def _was_synced(self, last: int, path: Path, vfs: str | None) -> bool:
        """True if this log is bound to the store, and all of its writers synced each commit."""
        alone = _read_file_alone(path, vfs)[1]
        found = chain(_bindings(self._log.frames(1, last)), [alone] if alone else [])
        ours = [one for one in found if one.salts == self.salts]
        return bool(ours) and not any(one.unsynced for one in ours)

    def _adds_something(self, last: int, path: Path, vfs: str | None) -> bool:
        """True if the frames change the file: a log that was restarted is in it already."""
        newest = {
            link.frame.page: link.number
            for link in self.links(last)
            if link.whole and link.frame.page
        }
        size = self._log.page_size
        with open_file(path, vfs) as file:
            for page, number in newest.items():
                frame = self._log.frame(number)
                if frame is None or file.xRead(size, (page - 1) * size) != frame.data:
                    return True
        return False


# ------------------------------------------------------------------------------------- replay


def write_replay(path: Path, ignored: IgnoredFrames, page_size: int, target: Path) -> None:
    """Write a copy of a store to `target`, with a log that SQLite reads to frame `ignored.last`.

    A damaged frame is copied as it is: the checksums of rows show what it broke.
    """
    create_private(target)
    create_private(companion(target, "-wal"))
    with open_file(path) as file, target.open("wb") as copy:
        at = 0
        while data := file.xRead(_COPIED_BYTES, at):
            copy.write(data)
            at += len(data)
    with LogFile(path, page_size) as log, companion(target, "-wal").open("wb") as copy:
        inspection = _Inspection(log, log.header_bytes(), taken=0)
        header = LogHeader.seal(page_size, inspection.salts)
        copy.write(header.encode())
        for frame in _resealed(inspection, ignored.last, header.checksum):
            copy.write(frame.encode())


def _resealed(inspection: _Inspection, last: int, sealed: Checksum) -> Iterator[Frame]:
    """Yield frames with new checksums, which continue `sealed`."""
    for link in inspection.links(last):
        if link.ours and link.frame.page:  # SQLite would stop at a frame without a page.
            commit = link.frame.commit if link.whole else 0
            frame = link.frame._replace(commit=commit, salts=inspection.salts)
            sealed = frame.continued(sealed, big_endian=False)
            yield frame._replace(checksum=sealed)
