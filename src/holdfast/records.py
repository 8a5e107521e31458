"""The vocabulary: what a conversation is made of.

All values are frozen. A `Message` is what is stored and never changed; it is made of parts. What a
caller did not give (`seq`, `turn_id`, `created_at`) is filled in by the store. Everything a
message holds is text, numbers and JSON, so that it can be read for ever without this program;
bytes enter as `File(data=…)` and are kept once, by their SHA-256. JSON has no cycles, so messages
are left out of garbage collection, which would take longer than reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
)

import msgspec

from holdfast import ids

if TYPE_CHECKING:
    JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
else:
    JSON = Any  # msgspec does not follow a type that names itself; `codec` checks the values
Role: TypeAlias = Literal["system", "user", "assistant", "tool", "summary"]
Status: TypeAlias = Literal["complete", "partial", "damaged", "erased"]
TurnState: TypeAlias = Literal["open", "sealed", "cancelled", "failed", "interrupted"]
ToolOutcome: TypeAlias = Literal["called", "running", "done", "error", "unknown", "not_run"]
SessionState: TypeAlias = Literal["open", "interrupted", "done", "damaged"]
Order: TypeAlias = Literal["activity", "pinned"]
GoalState: TypeAlias = Literal["active", "completed", "cancelled", "blocked"]
Relation: TypeAlias = Literal["fork", "continue", "reset", "delegate", "import"]
TitleBy: TypeAlias = Literal["user", "auto"]
BranchReason: TypeAlias = Literal[
    "start", "fork", "continue", "rewind", "undo", "redo", "replace", "clear"
]
LinkState: TypeAlias = Literal["live", "trashed", "purged"]
Forks: TypeAlias = Literal["keep", "erase"]
RetentionAction: TypeAlias = Literal["trash", "purge"]
IndexState: TypeAlias = Literal["ready", "behind", "missing", "damaged", "outdated", "none"]
Provider: TypeAlias = Literal["openai", "openai-responses", "anthropic", "gemini"]
RedactionAction: TypeAlias = Literal["replaced", "left out", "not looked into"]

T = TypeVar("T")


class Text(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Plain text."""

    text: str


class Thinking(msgspec.Struct, frozen=True, gc=False, tag="thinking", omit_defaults=True):
    """A model's reasoning, with the provider's signature where there is one."""

    text: str
    signature: str | None = None


class File(msgspec.Struct, frozen=True, gc=False, tag="file", omit_defaults=True):
    """A file: given with its `data`, kept and returned by `sha256` (see `Store.blob`)."""

    name: str | None = None
    mime: str | None = None
    data: bytes | None = None
    sha256: str | None = None
    size: int | None = None


# The kind of a file that keeps a tool's output whole, where it is too long for a model: beside it
# its beginning and end are said, and no window carries more of it than its name.
WHOLE_OUTPUT: Final = "application/octet-stream; holdfast=output"


class Raw(msgspec.Struct, frozen=True, gc=False, tag="raw"):
    """Foreign data kept verbatim, with the name of where it came from."""

    source: str
    data: JSON


class ToolCall(msgspec.Struct, frozen=True, gc=False, tag="tool_call", omit_defaults=True):
    """A model asks for a tool. `arguments` is JSON, or the text as the model wrote it."""

    id: str
    name: str
    arguments: JSON = None


class ToolResult(msgspec.Struct, frozen=True, gc=False, tag="tool_result", omit_defaults=True):
    """What a tool answered to the call with this id."""

    call_id: str
    content: str | tuple[Text | File | Raw, ...] = ""
    error: bool = False
    name: str | None = None

    @property
    def text(self) -> str:
        """The text of the answer."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, Text))


Part: TypeAlias = Text | Thinking | ToolCall | ToolResult | File | Raw
Content: TypeAlias = str | Part | Sequence[str | Part]


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens, as the provider counted them."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        """Add count by count."""
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )

    @property
    def total(self) -> int:
        """All tokens in and out; cache and reasoning counts are parts of these."""
        return self.input + self.output


class Provenance(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where a message came from when it was not said here: the source, and its id there."""

    source: str
    ref: str | None = None


def to_parts(content: Content) -> tuple[Part, ...]:
    """Turn what a caller wrote (text, a part, or several) into parts."""
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, Sequence):
        return tuple(Text(item) if isinstance(item, str) else item for item in content)
    return (content,)


class MessageFields(TypedDict, total=False):
    """What a caller may say of any message beyond its content."""

    id: str
    created_at: datetime
    status: Status
    name: str | None
    model: str | None
    usage: Usage | None
    cost: Decimal | None
    metadata: dict[str, JSON]
    provenance: Provenance | None


class Message(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One message of a history. Made once, stored as it is, never changed.

    A summary stands, in windows, for the history up to the message whose id is `covers`. `tokens`
    is about what a stored message costs there.
    """

    id: str = msgspec.field(default_factory=ids.message_id)
    role: Role
    parts: tuple[Part, ...] = ()
    seq: int | None = None
    turn_id: str | None = None
    created_at: datetime | None = None
    status: Status = "complete"
    name: str | None = None
    model: str | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    metadata: dict[str, JSON] = {}
    provenance: Provenance | None = None
    covers: str | None = None
    tokens: int | None = None

    def with_parts(self, parts: Sequence[Part]) -> Message:
        """Return it with other parts; what it then costs is not known."""
        return msgspec.structs.replace(self, parts=tuple(parts), tokens=None)

    @property
    def text(self) -> str:
        """Its text and tool-result texts, one under the other."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text | ToolResult))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools it asks for."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The tool answers it carries."""
        return tuple(part for part in self.parts if isinstance(part, ToolResult))

    @classmethod
    def user(cls, content: Content, **fields: Unpack[MessageFields]) -> Message:
        """Something a user said."""
        return cls(role="user", parts=to_parts(content), **fields)

    @classmethod
    def system(cls, content: Content, **fields: Unpack[MessageFields]) -> Message:
        """Instructions."""
        return cls(role="system", parts=to_parts(content), **fields)

    @classmethod
    def assistant(
        cls,
        content: Content = (),
        *,
        tool_calls: Sequence[ToolCall] = (),
        **fields: Unpack[MessageFields],
    ) -> Message:
        """Something the model said, and the tools it asks for."""
        return cls(role="assistant", parts=(*to_parts(content), *tool_calls), **fields)

    @classmethod
    def tool(
        cls,
        call_id: str,
        content: str | Sequence[Text | File | Raw],
        *,
        error: bool = False,
        **fields: Unpack[MessageFields],
    ) -> Message:
        """Answer the tool call with this id."""
        # A list is taken for a tuple; what is neither is refused when it is stored.
        kept = tuple(content) if isinstance(content, list) else content
        result = ToolResult(call_id, kept, error=error)  # type: ignore[arg-type]
        return cls(role="tool", parts=(result,), **fields)


class Head(msgspec.Struct, frozen=True):
    """Where a history ends: the branch (numbered within its session) and the newest `seq`."""

    branch: int
    seq: int


Place: TypeAlias = int | str | Head  # a seq of the history, a message's id, or any head


class BranchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a session's history: where it starts, how far it came, and who left it when.

    It shares messages 1 to `fork_seq` with the branch it leaves (number `parent` of session
    `parent_id`); its own are those up to `seq`. `asked_seq` is where it was to start: it differs
    when that was inside a tool exchange.
    """

    number: int
    parent: int | None
    parent_id: str | None
    fork_seq: int
    asked_seq: int
    seq: int
    reason: BranchReason
    created_at: datetime
    abandoned_at: datetime | None
    abandoned_by: BranchReason | None

    @property
    def head(self) -> Head:
        """Where it ends; `rewind` and `fork` take it."""
        return Head(self.number, self.seq)

    @property
    def active(self) -> bool:
        """Whether the session is on it."""
        return self.abandoned_at is None


class BranchChanged(msgspec.Struct, frozen=True):
    """What a follower is told when the session went to another branch.

    Of what was delivered, messages 1 to `kept` are still in view; those behind them follow.
    """

    head: Head
    kept: int
    reason: BranchReason

    @property
    def text(self) -> str:
        """Say it in words."""
        return f"({self.reason}: back to message {self.kept})"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A session in its lineage: its parent, how it came from it, and how much history they share.

    Of a session that was purged only this is left, and only while a fork needs it.
    """

    session_id: str
    parent: str | None
    relation: Relation | None
    seq: int
    title: str | None
    created_at: datetime | None
    state: LinkState


class Goal(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent is working towards, across turns and restarts."""

    objective: str
    summary: str | None = None
    state: GoalState = "active"
    started_at: datetime | None = None
    ended_at: datetime | None = None
    recap: str | None = None
    rounds: int = 0


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a turn, told apart from every other that ever had its pid."""

    host: str
    pid: int
    boot: str
    namespace: str
    started: str


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of sessions shows of one.

    `branches` counts those ever begun, `forks` the sessions outside the trash that were split off
    it (fork, continue). One whose state is `damaged` tells what could be read and nothing vouches
    for: its times are 1970 and its id is empty if not even these could be.
    """

    id: str
    key: str | None
    scope: str | None
    title: str | None
    title_by: TitleBy | None
    agent: str | None
    model: str | None
    cwd: str | None
    state: SessionState
    created_at: datetime
    updated_at: datetime
    turns: int
    messages: int
    usage: Usage
    cost: Decimal
    preview: str | None
    pinned: bool
    archived: bool
    trashed: bool
    goal: Goal | None
    metadata: dict[str, JSON]
    parent: str | None
    relation: Relation | None
    branches: int
    forks: int
    interrupted: bool


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a name may mean, with what tells it from the others."""

    id: str
    key: str | None
    title: str | None
    preview: str | None
    updated_at: datetime
    trashed: bool


class TurnInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One turn: how it went, and what it cost."""

    id: str
    state: TurnState
    run_id: str | None
    model: str | None
    started_at: datetime
    ended_at: datetime | None
    latency_ms: int | None
    usage: Usage
    cost: Decimal
    error: str | None
    tools: tuple[ToolRecord, ...]


class ToolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the tool ledger: `unknown` means started, and nobody knows how it ended."""

    call_id: str
    name: str | None
    outcome: ToolOutcome
    started_at: datetime | None
    ended_at: datetime | None


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery found and kept of a turn that a crash left open."""

    turn_id: str
    messages: int
    partial: Message | None
    unknown_tools: tuple[str, ...]
    not_run_tools: tuple[str, ...]
    since: datetime


class QueuedInput(msgspec.Struct, frozen=True, kw_only=True):
    """Input that waits for the next turn."""

    id: str
    message: Message
    created_at: datetime


class ModelUsage(msgspec.Struct, frozen=True):
    """What one model used and cost in a session."""

    model: str | None
    usage: Usage
    cost: Decimal


class UsageReport(msgspec.Struct, frozen=True):
    """What a session used and cost: the sum, and by model."""

    usage: Usage
    cost: Decimal
    by_model: tuple[ModelUsage, ...]


class Measured(msgspec.Struct, frozen=True):
    """How many tokens replies had, as the provider counted and as we estimated."""

    counted: int = 0
    estimated: int = 0

    def __add__(self, other: Measured) -> Measured:
        """Add both."""
        return Measured(self.counted + other.counted, self.estimated + other.estimated)


class LeftOut(msgspec.Struct, frozen=True):
    """How many messages are not in a window, and why."""

    count: int
    why: str


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to a model: iterable over its messages, in the provider's shape.

    `system` is what the provider takes apart from them. `call_ids` gives our id of each call in
    the window: the same one, unless the provider would not have it.
    """

    provider: Provider
    messages: tuple[dict[str, JSON], ...]
    system: JSON
    tokens: int
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    call_ids: dict[str, str]

    def __iter__(self) -> Iterator[dict[str, JSON]]:
        """Go through the messages."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Count the messages."""
        return len(self.messages)


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Something unreadable, and where it is. What can be read around it stays readable."""

    what: str
    session_id: str | None = None
    seq: int | None = None


class SalvageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `salvage` could carry over, and what not."""

    sessions: int
    messages: int
    turns: int
    blobs: int
    quarantined: int
    damage: tuple[Damage, ...]


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """A finished and verified backup."""

    path: str
    sessions: int
    messages: int
    size: int


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of an erasure: every file of the store was searched for pieces of what was erased.

    A piece that others said as well, and that is therefore still there, does not count. `found`
    names the files with one that should be gone; `problem` says why they could not be searched. A
    server's files cannot be searched by those who use it: then the store is not `searchable`, which
    is its nature and no failure.
    """

    files: int
    bytes: int
    fragments: int
    found: tuple[str, ...] = ()
    problem: str | None = None
    searchable: bool = True

    @property
    def clean(self) -> bool:
        """Whether all was searched and nothing found."""
        return not self.found and self.problem is None


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `purge` erased, what forks still need, and what is pending.

    `kept` messages stay because the sessions of `kept_for` share them. With `forks="erase"` they
    are tombstones there (`erased_in`), and count as erased.
    """

    session_id: str
    messages: int
    kept: int
    kept_for: tuple[str, ...]
    erased_in: tuple[str, ...]
    turns: int
    drafts: int
    queued: int
    blobs: int
    blob_bytes: int
    pending: tuple[str, ...]
    scan: Scan | None = None


class EraseReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where the body of one message was erased, and what is pending.

    It was in `places` places: where it was written, and where a replace stored it again. Those
    who share these do not have it any more either; `erased_in` names all sessions it is gone from.
    """

    session_id: str
    message_id: str
    seq: int
    places: int
    erased_in: tuple[str, ...]
    blobs: int
    blob_bytes: int
    pending: tuple[str, ...]
    scan: Scan | None = None


class PlanItem(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to go, why, and how it was when that was decided.

    `bytes` is about what its own messages and files take; what it shares with others stays.
    """

    session_id: str
    title: str | None
    action: RetentionAction
    why: str
    bytes: int
    messages: int
    created_at: datetime
    last_activity: datetime
    trashed_at: datetime | None
    head: Head


class Spared(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a rule meant, and that stays all the same."""

    session_id: str | None
    title: str | None
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `apply` would do: put `trash` in the trash, and erase `purge`, which is there already.

    `frees` is about what this frees, of the trash once that is emptied; `keeps` about what stays
    listed afterwards, if there was a limit to it.
    """

    made_at: datetime
    items: tuple[PlanItem, ...]
    spared: tuple[Spared, ...]
    frees: int
    keeps: int | None

    @property
    def trash(self) -> tuple[PlanItem, ...]:
        """What goes to the trash, from which it can be restored."""
        return tuple(item for item in self.items if item.action == "trash")

    @property
    def purge(self) -> tuple[PlanItem, ...]:
        """What is erased for ever."""
        return tuple(item for item in self.items if item.action == "purge")

    def __iter__(self) -> Iterator[PlanItem]:
        """Go through the items."""
        return iter(self.items)

    def __len__(self) -> int:
        """Count the items."""
        return len(self.items)


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `apply` did, and whom it spared because it changed since the plan was made."""

    trashed: tuple[str, ...]
    purged: tuple[str, ...]
    spared: tuple[Spared, ...]
    frees: int
    archive: ExportReport | None
    pending: tuple[str, ...]
    scan: Scan | None


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """What redaction did at one place: of a message, or of a session if it names none.

    The preview shows how a secret began. What was not looked into (an image, say) was found by no
    detector; its preview tells what it is.
    """

    session_id: str
    message_id: str | None
    seq: int | None
    where: str
    detector: str
    preview: str
    action: RedactionAction


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """What is, or would be, done to the secrets in an export.

    The counts are of all; of the findings the first 10,000 are listed.
    """

    replaced: int
    left_out: int
    not_looked_into: int
    findings: tuple[Redaction, ...]


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """A finished export; without a `review` nothing was looked for, and all is as it was."""

    path: str
    sessions: int
    messages: int
    blobs: int
    size: int
    review: Review | None = None

    @property
    def findings(self) -> tuple[Redaction, ...]:
        """What was replaced, left out, or not looked into."""
        return () if self.review is None else self.review.findings


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `import_` added, which sessions were there already, and what could not be read.

    A file that was `redacted` is no whole copy: secrets are not in it.
    """

    sessions: int
    messages: int
    skipped: tuple[str, ...]
    damage: tuple[Damage, ...]
    redacted: bool = False


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """All that a store holds, counted and summed up: two that hold the same have the same hash."""

    sessions: int
    messages: int
    turns: int
    queued: int
    blobs: int
    sha256: str


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `copy` brought, and what both stores hold now: all that was read again and compared.

    The sessions of `changed` went on in the source since they were read, or began; those of
    `differs` did not, and are not the same. `interrupted` ones had an open turn, which nobody holds
    in the target. Those of `others` are in the target alone.
    """

    added: int
    renewed: int
    unchanged: int
    changed: tuple[str, ...]
    differs: tuple[str, ...]
    interrupted: tuple[str, ...]
    others: int
    damage: tuple[Damage, ...]
    source: Contents
    target: Contents

    @property
    def same(self) -> bool:
        """Whether the target holds all that the source holds now, and nothing was damaged."""
        return self.source == self.target and not self.damage


class Growth(msgspec.Struct, frozen=True):
    """What was begun on one day: sessions, and the messages they hold by now."""

    day: date
    sessions: int
    messages: int


class DayUsage(msgspec.Struct, frozen=True):
    """What one model used and cost on one day (UTC), in all sessions."""

    day: date
    model: str | None
    usage: Usage
    cost: Decimal


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How much a store holds. `messages` counts what is stored: what forks share counts once."""

    sessions: int
    trashed: int
    branches: int
    messages: int
    turns: int
    open_turns: int
    blobs: int
    blob_bytes: int
    file_bytes: int
    growth: tuple[Growth, ...]
    days: tuple[DayUsage, ...]


class Activity(msgspec.Struct, frozen=True):
    """A session was written to. `number` grows with every write; pass it on as `since`."""

    number: int
    session_id: str
    head: Head


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found: a message, or a session by its title (then there is no message).

    `marks` are the ranges of `snippet` that match. `more` counts what else was found in sessions
    that share history with this one. `before` and `after` are its neighbours, if asked for.
    """

    session_id: str
    title: str | None
    message_id: str | None
    seq: int | None
    role: Role | None
    snippet: str
    marks: tuple[tuple[int, int], ...]
    score: float
    created_at: datetime
    more: int = 0
    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the search index: how many messages it has, and how many it is `behind` by.

    `bytes` is what it takes on disk, `text` about what the messages in it say. `none` means that
    this store keeps no index. Searches are right in every state.
    """

    state: IndexState
    path: str | None = None
    messages: int = 0
    behind: int = 0
    bytes: int = 0
    text: int = 0


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Part of a list, and the cursor that continues it (`None` at the end)."""

    items: tuple[T, ...]
    cursor: str | None = None

    def __iter__(self) -> Iterator[T]:
        """Go through the items."""
        return iter(self.items)

    def __len__(self) -> int:
        """Count the items of this page."""
        return len(self.items)
