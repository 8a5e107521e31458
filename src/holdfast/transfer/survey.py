"""The first pass of an import: validate the file, and find its sessions.

Nothing is stored yet. A file is refused if it is not an export, comes from a newer version, or has
content that no export has (a line too long or nested too deep, more messages claimed than fit into
the file). A damaged line is recorded.

Of each session only the offsets of its lines and the sessions that its branches start in are kept,
of a record of the store its offset: memory grows with the number of sessions and blobs, not with
their messages.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec

from holdfast import codec, validation
from holdfast.clock import to_micros
from holdfast.errors import Invalid, TooLarge
from holdfast.transfer.format import (
    MAX_HEADER_BYTES,
    MAX_LINE_DEPTH,
    VERSION,
    AnyLine,
    BadLine,
    BlobLine,
    BranchLine,
    EndLine,
    FormatVersion,
    Header,
    MessageLine,
    RecordLine,
    SessionLine,
    StoreRecordLine,
    decode_header,
    decode_line,
    is_too_deep,
)
from holdfast.transfer.import_file import ImportFile, RawLine
from holdfast.values import Damage

MAX_DAMAGED_LINES: Final = 10_000
_MAX_SESSIONS: Final = 1_000_000
_MAX_BLOBS: Final = 10_000_000
_MAX_STORE_RECORDS: Final = 10_000_000
_MIN_MESSAGE_BYTES: Final = 64
_NOT_AN_EXPORT: Final = "is not an export of Holdfast; nothing was imported."


class Section(msgspec.Struct):
    """Where the lines of a session are, and what the first pass found in them.

    The second pass reads the session's fields and branches again from its first and its last line;
    they are kept here only if the last line is damaged.
    """

    id: str
    start: int
    first_line: int
    stop: int
    identity_at: int | None = None
    end_at: int | None = None
    identity: SessionLine | None = None
    branches: dict[int, BranchLine] = {}
    parents: tuple[str, ...] = ()
    last_seq: int = 0
    messages: int = 0
    records: int = 0
    truncated: bool = False


class Survey(msgspec.Struct):
    """The result of the first pass."""

    header: Header
    sections: dict[str, Section]
    blobs: dict[bytes, tuple[int, int]]  # the offset and the size of each
    store_records: list[tuple[int, int]]  # the number and the offset of each line
    damage: dict[int, Damage]
    other_damage: list[Damage]


class Surveyor:
    """Reads a file once, line by line, and builds its `Survey`."""

    def __init__(self, source: ImportFile) -> None:
        """Read the header; raise `Invalid` if the file is not an export."""
        self._source = source
        self._header = _read_header(source)
        self._sections: dict[str, Section] = {}
        self._blobs: dict[bytes, tuple[int, int]] = {}
        self._store_records: list[tuple[int, int]] = []
        self._damage: dict[int, Damage] = {}
        self._other_damage: list[Damage] = []
        self._section: Section | None = None
        # Offset and number of the first line whose session is not known yet.
        self._unassigned: tuple[int, int] | None = None
        self._lines = self._checksum = self._bad_lines = 0  # Since the last session ended.
        self._live_sessions = self._claimed_messages = 0
        self._used_branches: set[int] = set()  # The branches that have messages or records.

    def add(self, line: RawLine) -> None:
        """Check the next line."""
        if line.number == 1:
            return
        if is_too_deep(line.data):
            raise TooLarge(
                f"line {line.number} is nested more than {MAX_LINE_DEPTH} levels deep; "
                "nothing was imported."
            )
        found = self._decode(line)
        self._lines += 1
        self._checksum = crc32(line.data, self._checksum)
        if self._section is None:
            self._unassigned = self._unassigned or (line.offset, line.number)
            return
        self._section.stop = line.offset + line.length
        if isinstance(found, EndLine):
            self._close()
        else:
            self._section.truncated = found is not None or not line.complete

    def _decode(self, line: RawLine) -> AnyLine | None:
        try:
            if not line.complete:
                raise BadLine("is cut off")  # noqa: TRY301
            found = decode_line(line.data)
            self._add_line(line, found)
        except BadLine as error:
            self._bad_lines += 1
            self._record_damage(line.number, str(error))
            return None
        return found

    def _record_damage(self, number: int, why: str) -> None:
        """Record a damaged line; raise `Invalid` if there are too many."""
        session = None if self._section is None else self._section.id
        self._damage[number] = Damage(what=f"line {number} {why}", session_id=session)
        if len(self._damage) > MAX_DAMAGED_LINES:
            raise Invalid(
                f"more than {MAX_DAMAGED_LINES} lines are damaged, up to line {number}; nothing "
                "was imported."
            )

    def finish(self) -> Survey:
        """Return the survey, after the last line was added."""
        cut = self._section is not None and self._section.truncated
        last = self._section
        self._close()
        if last is not None:
            # Forks in the file need all that they share with it: placeholders, where it is cut off.
            is_parent = any(last.id in section.parents for section in self._sections.values())
            last.truncated = cut and not is_parent
        missing = self._header.sessions - self._live_sessions
        if missing > 0:
            what = "a session is" if missing == 1 else f"{missing} sessions are"
            self._other_damage.append(Damage(what=f"{what} missing at the end"))
        # From a redacted file some may have been left out.
        lost = self._header.store_records - len(self._store_records)
        if lost > 0 and not self._header.redacted:
            what = "a record of the store is" if lost == 1 else f"{lost} records of the store are"
            self._other_damage.append(Damage(what=f"{what} missing at the end"))
        return Survey(
            self._header,
            self._sections,
            self._blobs,
            self._store_records,
            self._damage,
            self._other_damage,
        )

    # --------------------------------------------------------------------------------- lines

    def _add_line(self, line: RawLine, found: AnyLine) -> None:
        if isinstance(found, BlobLine):
            self._blob(line, found)
            return
        if isinstance(found, StoreRecordLine):
            self._store_record(line)
            return
        section = self._section_for(line, found.session)
        if isinstance(found, SessionLine):
            section.identity, section.identity_at = found, line.offset
        elif isinstance(found, BranchLine):
            section.branches[found.number] = found
        elif isinstance(found, MessageLine):
            section.messages += 1
            self._used_branches.add(found.branch)
        elif isinstance(found, RecordLine):
            section.records += 1
            self._used_branches.add(found.branch)
        elif isinstance(found, EndLine):
            self._end(line, section, found)

    def _blob(self, line: RawLine, found: BlobLine) -> None:
        if not validation.is_sha256(found.sha256) or codec.sha256_hex(found.data) != found.sha256:
            raise BadLine("does not match its hash")
        place = (line.offset, len(found.data))
        self._blobs.setdefault(bytes.fromhex(found.sha256), place)
        if len(self._blobs) > _MAX_BLOBS:
            raise TooLarge(
                f"line {line.number}: there are more than {_MAX_BLOBS} blobs; nothing was imported."
            )

    def _store_record(self, line: RawLine) -> None:
        """Note a record of the store; they come behind the last session."""
        self._close()
        self._store_records.append((line.number, line.offset))
        if len(self._store_records) > _MAX_STORE_RECORDS:
            raise TooLarge(
                f"line {line.number}: there are more than {_MAX_STORE_RECORDS} records of the "
                "store; nothing was imported."
            )

    def _section_for(self, line: RawLine, session: str) -> Section:
        """Return the section of a line's session; the lines of a session are contiguous."""
        if self._section is not None and self._section.id == session:
            return self._section
        if self._section is not None:
            self._close()
        if session in self._sections:
            raise BadLine("belongs to a session whose lines ended before")
        if len(self._sections) >= _MAX_SESSIONS:
            raise TooLarge(
                f"line {line.number}: there are more than {_MAX_SESSIONS} sessions; "
                "nothing was imported."
            )
        start, number = self._unassigned or (line.offset, line.number)
        section = Section(session, start, number, line.offset, branches={})
        self._sections[session] = self._section = section
        self._unassigned = None
        return section

    def _end(self, line: RawLine, section: Section, found: EndLine) -> None:
        missing = found.lines - self._lines
        if missing > 0:
            what = f"{missing} lines are missing before line {line.number}"
            self._other_damage.append(Damage(what=what, session_id=section.id))
        elif not self._bad_lines and found.checksum != f"{self._checksum:08x}":
            what = f"the lines before line {line.number} are not those that were exported"
            self._other_damage.append(Damage(what=what, session_id=section.id))
        section.end_at = line.offset
        section.identity = section.identity or found.identity
        section.branches = {branch.number: branch for branch in found.branches}

    def _close(self) -> None:
        """Finish a section; drop what can be read again from its last line."""
        section, self._section = self._section, None
        used, self._used_branches = self._used_branches, set()
        self._unassigned, self._lines, self._checksum, self._bad_lines = None, 0, 0, 0
        if section is None:
            return
        branches = [branch for branch in section.branches.values() if branch.session == section.id]
        foreign = [branch for branch in branches if branch.parent_id not in {None, section.id}]
        self._claimed_messages += sum(max(0, branch.seq - branch.fork_seq) for branch in branches)
        # Messages shared with a branch that is not in the file would all become placeholders.
        self._claimed_messages += sum(
            branch.fork_seq for branch in foreign if not self._has_parent(branch)
        )
        self._check_claims()
        section.last_seq = max((branch.seq for branch in branches), default=0)
        section.parents = tuple(dict.fromkeys(b.parent_id for b in foreign if b.parent_id))
        for number in sorted(used - section.branches.keys()):
            what = f"the start of branch {number} was lost; it was not imported"
            self._other_damage.append(Damage(what=what, session_id=section.id))
        section.truncated = False
        self._live_sessions += section.identity is None or section.identity.purged_at is None
        if section.end_at is not None:
            section.identity, section.branches = None, {}

    def _has_parent(self, branch: BranchLine) -> bool:
        parent = self._sections.get(branch.parent_id or "")
        return parent is not None and branch.fork_seq <= parent.last_seq

    def _check_claims(self) -> None:
        """Raise `TooLarge` if a few lines claim more messages than the file can have."""
        if self._claimed_messages > self._source.size // _MIN_MESSAGE_BYTES + MAX_DAMAGED_LINES:
            raise TooLarge(
                f"the file claims {self._claimed_messages} messages, more than its size allows; "
                "nothing was imported."
            )


def _read_header(source: ImportFile) -> Header:
    first = source.read_at(0, MAX_HEADER_BYTES).partition(b"\n")
    if not first[1]:
        raise Invalid(f"{source.path} {_NOT_AN_EXPORT}")
    try:
        introduction = msgspec.json.decode(first[0], type=FormatVersion)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise Invalid(f"{source.path} {_NOT_AN_EXPORT}") from None
    if introduction.type != "holdfast":
        raise Invalid(f"{source.path} {_NOT_AN_EXPORT}")
    if introduction.version > VERSION:
        raise Invalid(
            f"{source.path} was exported by a newer Holdfast (format version "
            f"{introduction.version}; this one reads up to {VERSION}); nothing was imported. "
            "Update Holdfast and try again."
        )
    try:
        header = decode_header(first[0] + first[1])
        to_micros(header.exported_at)
    except BadLine as error:
        raise Invalid(f"line 1 of {source.path} {error}; nothing was imported.") from None
    if header.version < 1:
        raise Invalid(f"{source.path} {_NOT_AN_EXPORT}")
    return header
