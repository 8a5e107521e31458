"""Redact the lines of an export.

Every text in a line is scanned: messages, queued messages, records and text files, also titles,
goals, metadata, the errors of turns, and the names of tools and models. A draft was stored in
chunks, and a secret may begin in one and end in the next; so the chunks are joined first, and the
draft is written as one chunk if a secret was found.

Ids (of sessions, messages, turns, runs and calls), times and numbers are not scanned. A session key
that contains a secret is left out, because two keys could get the same mark; so is a record with
one in its kind, key or scope.

Findings are counted, and kept up to `MAX_FINDINGS`, so that memory does not grow with the
histories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast import codec
from holdfast.draft_parts import Delta, merge_deltas
from holdfast.errors import BadQuery
from holdfast.operations.session_fields import TEXT_FIELDS
from holdfast.transfer.format import (
    MAX_LINE_BYTES,
    DraftLine,
    LedgerEntry,
    SessionLine,
    TurnLine,
    UsageLine,
    encode_line,
    message_line,
    store_record_line,
)
from holdfast.transfer.redact.message import (
    RedactionFinding,
    is_text_file,
    redact_json,
    redact_message,
    redact_record,
)
from holdfast.transfer.redact.secrets import ALL_NAMES, DEFAULT_NAMES, Detectors, detectors_named
from holdfast.validation import MAX_NAME_BYTES
from holdfast.values import (
    JSON,
    File,
    Goal,
    Message,
    Part,
    Record,
    Redaction,
    RedactionAction,
    Review,
    SessionProvenance,
    Text,
    ToolResult,
)

MAX_FINDINGS: Final = 10_000
_NAMES: Final = tuple(name for name in TEXT_FIELDS if name not in {"id", "key", "parent"})
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {"default": DEFAULT_NAMES, "all": ALL_NAMES}
_TOO_LONG_MARK: Final = "[redacted: too long]"
_LINE_OVERHEAD_BYTES: Final = 1024  # For the fields of a line beside the message.


def select_detectors(names: str | Sequence[str] | None) -> Detectors:
    """Return the detectors with these names; `default` and `all` are groups, `None` is none."""
    if names is None:
        return ()
    listed = (names,) if isinstance(names, str) else names
    if not isinstance(listed, Iterable) or not all(isinstance(name, str) for name in listed):
        raise BadQuery("redact: expected names of detectors, 'default', 'all', or None.")
    return detectors_named(one for name in listed for one in _GROUPS.get(name, (name,)))


class Redactor:
    """Redacts lines and records the findings; without detectors it changes nothing."""

    def __init__(self, using: Detectors, *, longest: int = MAX_LINE_BYTES) -> None:
        """Use these detectors; a message whose line exceeds `longest` bytes loses its parts."""
        self._detectors = using
        self._max_line_bytes = longest
        self._findings: list[Redaction] = []
        self._counts: dict[RedactionAction, int] = {}

    @property
    def active(self) -> bool:
        """True if there are any detectors."""
        return bool(self._detectors)

    def review(self) -> Review | None:
        """Return the findings; `None` without detectors."""
        if not self.active:
            return None
        return Review(
            replaced=self._counts.get("replaced", 0),
            left_out=self._counts.get("left out", 0),
            not_looked_into=self._counts.get("not looked into", 0),
            findings=tuple(self._findings),
        )

    def _record(self, finding: Redaction) -> None:
        self._counts[finding.action] = self._counts.get(finding.action, 0) + 1
        if len(self._findings) < MAX_FINDINGS:
            self._findings.append(finding)

    # ------------------------------------------------------------------------------- messages

    def message(
        self, session: str, message: Message, blob: codec.BlobReader, *, before: str = ""
    ) -> tuple[Message, dict[str, bytes]]:
        """Return the redacted message, and the new data of its files by hash.

        `blob` reads the data of files; `before` prefixes `where` in every finding.
        """
        if not self.active:
            return message, {}
        now, findings = redact_message(_load_files(message, blob), self._detectors)
        self._record_all(session, findings, before)
        if all(one.action == "not looked into" for one in findings):
            return message, {}
        return self._limit_length(session, now, before)

    def _record_all(
        self, session: str | None, findings: Iterable[RedactionFinding], before: str
    ) -> None:
        for one in findings:
            self._record(
                Redaction(
                    session_id=session,
                    message_id=one.message_id,
                    seq=one.seq,
                    where=before + one.where,
                    detector=one.detector,
                    preview=one.preview,
                    action=one.action,
                )
            )

    def _limit_length(
        self, session: str, message: Message, before: str
    ) -> tuple[Message, dict[str, bytes]]:
        """Move file data out of a message; drop its parts if its marks make it too long."""
        fresh: dict[str, bytes] = {}
        now = _map_files(message, lambda file: _unload_file(file, fresh))
        line = message_line(session=session, branch=1, turn=None, message=now)
        if len(encode_line(line)) <= self._max_line_bytes - _LINE_OVERHEAD_BYTES:
            return now, fresh
        self._record(
            Redaction(
                session_id=session,
                message_id=message.id,
                seq=message.seq,
                where=f"{before}parts",
                detector="",
                preview="too long with its marks",
                action="left out",
            )
        )
        bare = msgspec.structs.replace(
            now, parts=(Text(_TOO_LONG_MARK),), name=None, model=None, metadata={}, provenance=None
        )
        return bare, {}

    # -------------------------------------------------------------------------------- records

    def record(
        self, session: str | None, record: Record, blob: codec.BlobReader, *, before: str
    ) -> tuple[Record | None, dict[str, bytes]]:
        """Return the redacted record, `None` if it is left out, and the new data of its files.

        The arguments are as for a message; a record of the store has no session.
        """
        if not self.active:
            return record, {}
        files = {name: _load_file(file, blob) for name, file in record.files.items()}
        loaded = msgspec.structs.replace(record, files=files)
        now, findings = redact_record(loaded, self._detectors)
        self._record_all(session, findings, before)
        if all(one.action == "not looked into" for one in findings):
            return record, {}
        fresh: dict[str, bytes] = {}
        if now is not None:
            files = {name: _unload_file(file, fresh) for name, file in now.files.items()}
            now = msgspec.structs.replace(now, files=files)
            now = now if self._fits(session, now, before) else None
        return now, fresh

    def _fits(self, session: str | None, record: Record, before: str) -> bool:
        """True unless the marks make a record too long for a line, which is recorded."""
        line = store_record_line(record, replaced=False)
        if len(encode_line(line)) <= self._max_line_bytes - _LINE_OVERHEAD_BYTES:
            return True
        too_long = RedactionFinding(
            message_id=None,
            seq=record.seq,
            where="data",
            detector="",
            preview="too long with its marks",
            action="left out",
        )
        self._record_all(session, [too_long], before)
        return False

    # ------------------------------------------------------------------------- other lines

    def identity(self, line: SessionLine) -> SessionLine:
        """Redact the fields of a session."""
        if not self.active:
            return line
        texts = _FieldRedactor(self._detectors, line.session, self._record)
        names = {name: texts.name(getattr(line, name), name) for name in _NAMES}
        return msgspec.structs.replace(
            line,
            key=texts.omit_if_secret(line.key, "key"),
            **names,
            title_by=None if names["title"] is None else line.title_by,
            goal=None if line.goal is None else _goal(line.goal, texts),
            metadata=texts.json(line.metadata, "metadata"),
            provenance=None if line.provenance is None else _provenance(line.provenance, texts),
        )

    def turn(self, line: TurnLine) -> TurnLine:
        """Redact a turn and its ledger of tool calls."""
        if not self.active:
            return line
        texts, where = (
            _FieldRedactor(self._detectors, line.session, self._record),
            f"turns[{line.number}]",
        )
        return msgspec.structs.replace(
            line,
            model=texts.name(line.model, f"{where}.model"),
            error=texts.text(line.error, f"{where}.error"),
            tools=tuple(
                _tool(tool, texts, f"{where}.tools[{at}]") for at, tool in enumerate(line.tools)
            ),
        )

    def usage(self, lines: Sequence[UsageLine]) -> list[UsageLine]:
        """Redact the models' names; add up usage whose names have become equal."""
        found: dict[tuple[object, str | None], UsageLine] = {}
        for line in lines:
            now = line
            if self.active:
                texts = _FieldRedactor(self._detectors, line.session, self._record)
                now = msgspec.structs.replace(line, model=texts.name(line.model, "usage.model"))
            other = found.get((now.day, now.model))
            found[now.day, now.model] = now if other is None else _add_usage(other, now)
        return list(found.values())

    def draft(self, lines: Sequence[DraftLine]) -> Sequence[DraftLine]:
        """Redact a draft; return it as one chunk if anything is found in it."""
        if not self.active or not lines:
            return lines
        opening = lines[0]
        reply = Message(
            id=opening.id or "",
            role="assistant",
            parts=merge_deltas(delta for line in lines for delta in line.deltas),
            model=opening.model,
        )
        now, _ = self.message(opening.session, reply, lambda _: None, before="draft.")
        if now is reply:
            return lines
        whole = DraftLine(
            session=opening.session,
            turn=opening.turn,
            number=1,
            deltas=tuple(part for part in now.parts if isinstance(part, Delta)),
            usage=next((line.usage for line in reversed(lines) if line.usage), None),
            cost=next((line.cost for line in reversed(lines) if line.cost is not None), None),
        )
        return [msgspec.structs.replace(opening, model=now.model), whole]


class _FieldRedactor:
    """Redacts the fields of one session, its turns and its usage."""

    def __init__(self, using: Detectors, session: str, note: Callable[[Redaction], None]) -> None:
        self._detectors = using
        self._session = session
        self._record = note

    def text(self, text: str | None, where: str) -> str | None:
        """Redact a text of any length."""
        changed = self._json(text, where, "replaced")
        return changed if isinstance(changed, str) else None

    def name(self, text: str | None, where: str) -> str | None:
        """Redact a text of limited length; `None` if its marks make it too long."""
        changed = self.text(text, where)
        if changed is None or len(codec.encode_text(changed)) <= MAX_NAME_BYTES:
            return changed
        preview = f"{len(changed):,} characters with its marks"
        self._record_finding(where, "", preview, "left out")
        return None

    def omit_if_secret(self, text: str | None, where: str) -> str | None:
        """Return a text; `None` if it contains a secret."""
        return text if self._json(text, where, "left out") == text else None

    def json(self, value: dict[str, JSON], where: str) -> dict[str, JSON]:
        """Redact metadata."""
        changed = self._json(value, where, "replaced")
        return changed if isinstance(changed, dict) else {}

    def _json(self, value: JSON, where: str, action: RedactionAction) -> JSON:
        if value is None or value == {}:
            return value
        changed, found = redact_json(value, self._detectors)
        for one in found:
            path = f"{where}.{one.where}" if one.where else where
            self._record_finding(path, one.detector, one.preview, action)
        return changed

    def _record_finding(
        self, where: str, detector: str, preview: str, action: RedactionAction
    ) -> None:
        self._record(
            Redaction(
                session_id=self._session,
                message_id=None,
                seq=None,
                where=where,
                detector=detector,
                preview=preview,
                action=action,
            )
        )


def _goal(goal: Goal, texts: _FieldRedactor) -> Goal:
    return msgspec.structs.replace(
        goal,
        objective=texts.text(goal.objective, "goal.objective") or "",
        summary=texts.text(goal.summary, "goal.summary"),
        recap=texts.text(goal.recap, "goal.recap"),
    )


def _provenance(given: SessionProvenance, texts: _FieldRedactor) -> SessionProvenance:
    names = ("cwd", "scope", "agent")
    return msgspec.structs.replace(
        given,
        source=texts.name(given.source, "provenance.source") or "?",
        key=texts.omit_if_secret(given.key, "provenance.key"),
        **{name: texts.name(getattr(given, name), f"provenance.{name}") for name in names},
    )


def _tool(tool: LedgerEntry, texts: _FieldRedactor, where: str) -> LedgerEntry:
    return msgspec.structs.replace(tool, name=texts.text(tool.name, f"{where}.name"))


def _add_usage(one: UsageLine, two: UsageLine) -> UsageLine:
    return msgspec.structs.replace(
        one,
        usage=one.usage + two.usage,
        cost=one.cost + two.cost,
        measured=one.measured + two.measured,
    )


# ------------------------------------------------------------------------------------------ files


def _load_files(message: Message, blob: codec.BlobReader) -> Message:
    """Return a message with the data of its text files loaded."""
    return _map_files(message, lambda file: _load_file(file, blob))


def _load_file(file: File, blob: codec.BlobReader) -> File:
    """Return a file with its data loaded if it is text."""
    if file.sha256 is None or file.data is not None or not is_text_file(file):
        return file
    return msgspec.structs.replace(file, data=blob(file.sha256))


def _unload_file(file: File, fresh: dict[str, bytes]) -> File:
    """Return a file without its data, which is added to `fresh`."""
    if file.data is None or file.sha256 is None:
        return file
    fresh[file.sha256] = bytes(file.data)
    return msgspec.structs.replace(file, data=None)


def _map_files(message: Message, change: Callable[[File], File]) -> Message:
    """Return a message with `change` applied to each file; the same message if it has none."""
    if not codec.file_hashes(message):
        return message
    parts = tuple(_map_file(part, change) for part in message.parts)
    return msgspec.structs.replace(message, parts=parts)


def _map_file(part: Part, change: Callable[[File], File]) -> Part:
    if isinstance(part, File):
        return change(part)
    if isinstance(part, ToolResult) and not isinstance(part.content, str):
        content = tuple(change(one) if isinstance(one, File) else one for one in part.content)
        return msgspec.structs.replace(part, content=content)
    return part
