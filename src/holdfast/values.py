"""The values that the API takes and returns.

All values are frozen. A `Message` is stored once and never changed; it consists of parts. Fields
that the caller did not set (`seq`, `turn_id`, `created_at`) are set by the store. A message
contains only text, numbers and JSON, so that it can always be read without this program; bytes are
passed as `File(data=…)` and stored once, by their SHA-256. JSON has no cycles, so messages are
excluded from garbage collection, which would take longer than reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    Required,
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
    JSON = Any  # msgspec does not support a recursive alias; `codec` checks the values
TokenCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Role: TypeAlias = Literal["system", "user", "assistant", "tool", "summary"]
Status: TypeAlias = Literal["complete", "partial", "damaged", "erased"]
TurnState: TypeAlias = Literal["open", "sealed", "cancelled", "failed", "interrupted"]
ToolOutcome: TypeAlias = Literal["called", "running", "done", "error", "unknown", "not_run"]
SessionState: TypeAlias = Literal["open", "interrupted", "done", "damaged"]
Order: TypeAlias = Literal["activity", "pinned"]
GoalState: TypeAlias = Literal["active", "paused", "completed", "cancelled", "blocked"]
Relation: TypeAlias = Literal["fork", "continue", "reset", "delegate", "import"]
TitleBy: TypeAlias = Literal["user", "auto"]
BranchReason: TypeAlias = Literal[
    "start", "fork", "continue", "rewind", "undo", "redo", "replace", "clear"
]
LinkState: TypeAlias = Literal["live", "trashed", "purged"]
Forks: TypeAlias = Literal["keep", "erase"]
RetentionAction: TypeAlias = Literal["trash", "purge"]
IndexState: TypeAlias = Literal["ready", "behind", "missing", "damaged", "outdated", "none"]
# Each is the name of a module in `formats` and one in `testing.legality` (AGENTS.md, Recipes).
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
    """A file: passed with its `data`, stored and returned by `sha256` (see `Store.blob`)."""

    name: str | None = None
    mime: str | None = None
    data: bytes | None = None
    sha256: str | None = None
    size: int | None = None


# The type of a file with the full output of a tool that is too long for a model. The tool result
# also has its beginning and end as text; windows include only the file's name.
WHOLE_OUTPUT: Final = "application/octet-stream; holdfast=output"
# The source of a `Raw` part begins so if it keeps the dict a message was made from. It is not sent.
ORIGINAL: Final = "original "


class Raw(msgspec.Struct, frozen=True, gc=False, tag="raw"):
    """Foreign data stored verbatim, with the name of its source."""

    source: str
    data: JSON


class ToolCall(msgspec.Struct, frozen=True, gc=False, tag="tool_call", omit_defaults=True):
    """A model's call of a tool. `arguments` is JSON, or the text as the model wrote it."""

    id: str
    name: str
    arguments: JSON = None


class ToolResult(msgspec.Struct, frozen=True, gc=False, tag="tool_result", omit_defaults=True):
    """The result of the tool call with this id."""

    call_id: str
    content: str | tuple[Text | File | Raw, ...] = ""
    error: bool = False
    name: str | None = None

    @property
    def text(self) -> str:
        """The text of the result."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, Text))


Part: TypeAlias = Text | Thinking | ToolCall | ToolResult | File | Raw
Content: TypeAlias = str | Part | Sequence[str | Part]


def is_original(part: Part) -> bool:
    """True if a part keeps the dict that its message was made from."""
    return isinstance(part, Raw) and part.source.startswith(ORIGINAL)


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens, as the provider counted them."""

    input: TokenCount = 0
    output: TokenCount = 0
    cache_read: TokenCount = 0
    cache_write: TokenCount = 0
    reasoning: TokenCount = 0

    def __add__(self, other: Usage) -> Usage:
        """Return the sum, count by count."""
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
    """Where a message was imported from: the source, its id there, and its role if it had more.

    A `role` is set where the message was demoted: as `system` it would have instructed the model.
    """

    source: str
    ref: str | None = None
    role: Role | None = None


def to_parts(content: Content) -> tuple[Part, ...]:
    """Return content (text, a part, or several of both) as parts."""
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, Sequence):
        return tuple(Text(item) if isinstance(item, str) else item for item in content)
    return (content,)


class MessageFields(TypedDict, total=False):
    """The fields that a caller may set on any message, besides its content."""

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
    """One message of a history, stored as it is and never changed.

    In windows, a summary replaces the history up to the message whose id is `covers`.
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

    def with_parts(self, parts: Sequence[Part]) -> Message:
        """Return the message with other parts."""
        return msgspec.structs.replace(self, parts=tuple(parts))

    @property
    def text(self) -> str:
        """The texts of its parts and tool results, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text | ToolResult))

    @property
    def demoted(self) -> bool:
        """Whether it was a system message before it was imported."""
        return self.provenance is not None and self.provenance.role is not None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the message."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The tool results of the message."""
        return tuple(part for part in self.parts if isinstance(part, ToolResult))

    @property
    def files(self) -> tuple[File, ...]:
        """The files of the message and of its tool results; `Store.blobs` reads their data."""
        contents = (result.content for result in self.tool_results)
        pieces = (part for content in contents if not isinstance(content, str) for part in content)
        return tuple(part for part in (*self.parts, *pieces) if isinstance(part, File))

    @classmethod
    def user(cls, content: Content, **fields: Unpack[MessageFields]) -> Message:
        """Return a user message."""
        return cls(role="user", parts=to_parts(content), **fields)

    @classmethod
    def system(cls, content: Content, **fields: Unpack[MessageFields]) -> Message:
        """Return a message with instructions."""
        return cls(role="system", parts=to_parts(content), **fields)

    @classmethod
    def assistant(
        cls,
        content: Content = (),
        *,
        tool_calls: Sequence[ToolCall] = (),
        **fields: Unpack[MessageFields],
    ) -> Message:
        """Return a reply of the model, with its tool calls."""
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
        """Return a message with the result of the tool call with this id."""
        # A list is accepted as a tuple; anything else is rejected when it is stored.
        parts = tuple(content) if isinstance(content, list) else content
        result = ToolResult(call_id, parts, error=error)  # type: ignore[arg-type]
        return cls(role="tool", parts=(result,), **fields)


class _OfKind(msgspec.Struct, frozen=True):  # The one field of a record that has a position.
    kind: str


class Record(_OfKind, frozen=True, kw_only=True):
    """State that lies behind a message without being one, such as a framework's checkpoint.

    It is found by its `kind` and `key`; the newest one is current. `data` is JSON. `files` are
    passed with their data; small ones are returned with it, others by `sha256` (`Store.blobs`).

    With `after` a record is stored only if the newest one of its kind and key has this id, or, with
    `None`, if there is none; otherwise `PreconditionFailed` is raised. With `scope` it is not of a
    session but of the store: of this scope, or, with `None`, of all. One that was read has the
    `seq` of the message that it lies behind.
    """

    key: str | None = None
    data: JSON = None
    files: dict[str, File] = {}
    id: str = msgspec.field(default_factory=ids.message_id)
    after: str | msgspec.UnsetType | None = msgspec.UNSET
    scope: str | msgspec.UnsetType | None = msgspec.UNSET
    seq: int | None = None
    created_at: datetime | None = None


class Head(msgspec.Struct, frozen=True):
    """Where a history ends: the branch (numbered within its session) and the newest `seq`."""

    branch: int
    seq: int


MessageRef: TypeAlias = int | str | Head  # a seq of the history, a message's id, or any head


class ForkFields(TypedDict, total=False):
    """The fields that a caller may set on a fork, besides its key."""

    title: str | None
    model: str | None
    cwd: str | None
    metadata: dict[str, JSON] | None


class SessionFields(ForkFields, total=False):
    """The fields that a caller may set on a new session, besides its key."""

    scope: str | None
    agent: str | None


class NewSession(SessionFields):
    """The key of a session that `Store.load` adds to, and the fields that a new one gets."""

    key: Required[str]


class SessionChanges(TypedDict, total=False):
    """The fields that `Session.update` can change; a missing one stays as it is.

    With `expect_goal` nothing is changed unless this is the current goal, with `expect_metadata`
    unless these keys have these values; `None` means that there is no such key.
    """

    title: str | None
    auto_title: str | None
    model: str | None
    cwd: str | None
    scope: str | None
    pinned: bool
    archived: bool
    goal: Goal | None
    expect_goal: Goal | None
    metadata: dict[str, JSON]
    expect_metadata: dict[str, JSON]


class ListOptions(TypedDict, total=False):
    """The options of a list of sessions; see `Store.sessions`."""

    scope: str | None
    agent: str | None
    cwd: str | None
    text: str | None
    pinned: bool | None
    archived: bool | None
    trashed: bool
    delegates: bool
    key_prefix: str | None
    metadata: dict[str, JSON] | None
    state: SessionState | None
    since: datetime | str | None
    until: datetime | str | None
    order: Order
    limit: int
    cursor: str | None


class SearchOptions(TypedDict, total=False):
    """The options of a search; see `Store.search`."""

    scope: str | None
    agent: str | None
    cwd: str | None
    role: Role | None
    since: datetime | str | None
    until: datetime | str | None
    session: str | None
    literal: bool
    thinking: bool
    all_branches: bool
    around: int
    limit: int
    cursor: str | None


class RetentionOptions(TypedDict, total=False):
    """The rules of a retention plan; see `Store.retention`."""

    older_than: timedelta | str | None
    idle: timedelta | str | None
    keep_last: int | None
    scope: str | None
    max_bytes: int | None
    empty_trash: timedelta | str | None


class BranchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A branch of a session: where it starts and ends, and when and why it was abandoned.

    It shares messages 1 to `fork_seq` with its parent (branch number `parent` of session
    `parent_id`); its own are those after it, up to `seq`. `asked_seq` is where it was requested to
    start: it differs if that was inside a tool exchange.
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
        """Where it ends; pass it to `rewind` or `fork`."""
        return Head(self.number, self.seq)

    @property
    def active(self) -> bool:
        """Whether it is the session's current branch."""
        return self.abandoned_at is None


class BranchChanged(msgspec.Struct, frozen=True):
    """What a follower delivers when the session moved to another branch.

    Of the messages delivered so far, 1 to `kept` are still in the history; the new ones follow, and
    before them, if records are followed, all records behind message `kept`.
    """

    head: Head
    kept: int
    reason: BranchReason

    @property
    def text(self) -> str:
        """A description for display."""
        return f"({self.reason}: back to message {self.kept})"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a lineage: its parent, its relation to it, and how much history they share.

    A purged session keeps only this, and only while a fork needs it.
    """

    session_id: str
    key: str | None
    parent: str | None
    relation: Relation | None
    seq: int
    title: str | None
    metadata: dict[str, JSON]
    created_at: datetime | None
    state: LinkState


class Goal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The goal of an agent, across turns and restarts."""

    objective: str
    summary: str | None = None
    state: GoalState = "active"
    started_at: datetime | None = None
    ended_at: datetime | None = None
    recap: str | None = None
    rounds: int = 0


class SessionProvenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a session was imported from, and the fields it had there that have no effect here.

    `head` is where it ended when it was imported; until that moves, nobody has continued it.
    """

    source: str
    cwd: str | None = None
    key: str | None = None
    scope: str | None = None
    agent: str | None = None
    pinned: bool = False
    head: Head | None = None


class Lease(msgspec.Struct, frozen=True):
    """For how many seconds a turn is held without a renewal, and until when.

    `until` is in microseconds of the monotonic clock of the holder's boot and time namespace.
    """

    seconds: float
    until: int


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a turn, distinct from every other that ever had its pid.

    `namespace` is that of its pid, `time_namespace` that of its start time and of its lease.
    """

    host: str
    pid: int
    boot: str
    namespace: str
    started: str
    time_namespace: str = ""
    lease: Lease | None = None


class SessionInfo(msgspec.Struct, frozen=True):
    """A session as lists show it.

    `branches` counts all branches ever created, `forks` the forks and continuations that are not in
    the trash. If the state is `damaged`, the fields are what could be read without a valid
    checksum: times are 1970 and the id is empty if not even these could be read.
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
    provenance: SessionProvenance | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A session that matches an ambiguous reference, with what distinguishes it."""

    id: str
    key: str | None
    title: str | None
    preview: str | None
    updated_at: datetime
    trashed: bool


class TurnInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One turn: its state, usage and tool calls."""

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
    """A row of the tool ledger; `unknown` means that it started and its end was not recorded."""

    call_id: str
    name: str | None
    outcome: ToolOutcome
    started_at: datetime | None
    ended_at: datetime | None


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What was recovered of a turn that a crash left open."""

    turn_id: str
    messages: int
    partial: Message | None
    unknown_tools: tuple[str, ...]
    not_run_tools: tuple[str, ...]
    since: datetime


class QueuedInput(msgspec.Struct, frozen=True, kw_only=True):
    """Input queued for the next turn."""

    id: str
    message: Message
    created_at: datetime


class ModelUsage(msgspec.Struct, frozen=True):
    """The usage and cost of one model in a session."""

    model: str | None
    usage: Usage
    cost: Decimal


class UsageReport(msgspec.Struct, frozen=True):
    """The usage and cost of a session: the sum, and by model."""

    usage: Usage
    cost: Decimal
    by_model: tuple[ModelUsage, ...]


class MeasuredTokens(msgspec.Struct, frozen=True):
    """Token counts of the same text, as the provider reported them and as estimated here."""

    counted: int = 0
    estimated: int = 0

    def __add__(self, other: MeasuredTokens) -> MeasuredTokens:
        """Return the sum of both counts."""
        return MeasuredTokens(self.counted + other.counted, self.estimated + other.estimated)


class LeftOut(msgspec.Struct, frozen=True):
    """How many messages were left out of a window, and why."""

    count: int
    why: str


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to a model: iterable over its messages, in the provider's format.

    `system` is the system prompt where the provider takes it separately. `sources` has, for each of
    the messages, the ids of the stored messages that it is made of; one that the window added (a
    result for a call that has none, the system prompt) has none. `call_ids` maps the id of each
    tool call in the window to the stored one; they differ if the provider rejects the latter.
    """

    provider: Provider
    # Their types are those of the provider's own package, which takes them as they are.
    messages: list[Any]
    sources: tuple[tuple[str, ...], ...]
    system: Any
    tokens: int
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    call_ids: dict[str, str]

    def __iter__(self) -> Iterator[dict[str, JSON]]:
        """Iterate over the messages."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.messages)


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Something unreadable, and where it is. Everything around it stays readable.

    If it is `blocking`, its session accepts no writes; without a session, the whole store does not.
    """

    what: str
    session_id: str | None = None
    seq: int | None = None
    blocking: bool = True


class SalvageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `salvage` copied, and what was damaged."""

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


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """A restored backup: what it holds, and where what it replaced was set aside, if anything."""

    path: str
    sessions: int
    messages: int
    size: int
    replaced: str | None


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of an erasure: a search of all files of the store for fragments of what was erased.

    A fragment that other stored messages contain as well does not count. `found` has the files with
    a fragment that should be gone; `copies` has the backups, exports and other copies in the
    store's directory that hold one: they are not changed. `problem` is why the files could not be
    searched. The files of a server cannot be searched by its clients: then the store is not
    `searchable`, which is not a failure.
    """

    files: int
    bytes: int
    fragments: int
    found: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    problem: str | None = None
    searchable: bool = True

    @property
    def clean(self) -> bool:
        """Whether everything was searched and nothing found in the store's own files."""
        return not self.found and self.problem is None


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `purge` erased, what forks still need, and what is pending.

    `kept` messages stay because the sessions of `kept_for` share them. With `forks="erase"` they
    are replaced by tombstones there (`erased_in`), and count as erased. `records` counts the
    records that were erased.
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
    records: int = 0


class EraseReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where the body of one message was erased, and what is pending.

    `places` counts its copies: the original, and those that a replace stored again. `erased_in` has
    all sessions that no longer have it, including those that shared a copy.
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
    """A session to be trashed or purged, why, and its state when the plan was made.

    `bytes` is the approximate size of its own messages and files; what it shares stays.
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
    """A session that matched a rule and stays nevertheless, and why."""

    session_id: str | None
    title: str | None
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `apply` will do: move `trash` to the trash, and erase `purge`, which is in the trash.

    `frees` is the approximate number of bytes this frees, for trashed sessions once the trash is
    emptied; `keeps` is the size of what stays listed, if there was a limit to it.
    """

    made_at: datetime
    items: tuple[PlanItem, ...]
    spared: tuple[Spared, ...]
    frees: int
    keeps: int | None

    @property
    def trash(self) -> tuple[PlanItem, ...]:
        """The sessions to be moved to the trash, from which they can be restored."""
        return tuple(item for item in self.items if item.action == "trash")

    @property
    def purge(self) -> tuple[PlanItem, ...]:
        """The sessions to be erased for ever."""
        return tuple(item for item in self.items if item.action == "purge")

    def __iter__(self) -> Iterator[PlanItem]:
        """Iterate over the items."""
        return iter(self.items)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.items)


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `apply` did, and which sessions it spared because they changed since the plan."""

    trashed: tuple[str, ...]
    purged: tuple[str, ...]
    spared: tuple[Spared, ...]
    frees: int
    archive: ExportReport | None
    pending: tuple[str, ...]
    scan: Scan | None


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """One finding of redaction: in a message, or in a session if `message_id` is `None`.

    One in a record of the store has no session. The preview shows the beginning of a secret.
    Content that no detector can read (such as an image) is reported as "not looked into"; its
    preview shows what it is.
    """

    session_id: str | None
    message_id: str | None
    seq: int | None
    where: str
    detector: str
    preview: str
    action: RedactionAction


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """What redaction does, or would do, to the secrets in an export.

    The counts cover all findings; the first 10,000 are listed.
    """

    replaced: int
    left_out: int
    not_looked_into: int
    findings: tuple[Redaction, ...]


class DropReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `drop` erased: records, and the blobs that nothing else refers to.

    `kept` counts the records that stay because the history of a fork runs through them. `pending`
    says what still holds some of the erased bytes, and what to do about it.
    """

    records: int
    kept: int
    blobs: int
    blob_bytes: int
    pending: tuple[str, ...] = ()

    def __add__(self, other: DropReport) -> DropReport:
        """Return what both erased."""
        return DropReport(
            records=self.records + other.records,
            kept=self.kept + other.kept,
            blobs=self.blobs + other.blobs,
            blob_bytes=self.blob_bytes + other.blob_bytes,
            pending=(*self.pending, *other.pending),
        )


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """A finished export; without a `review` it was not redacted.

    `records` counts those of the sessions and of the store.
    """

    path: str
    sessions: int
    messages: int
    records: int
    blobs: int
    size: int
    review: Review | None = None

    @property
    def findings(self) -> tuple[Redaction, ...]:
        """What was replaced, left out, or not searched."""
        return () if self.review is None else self.review.findings


class Demotion(msgspec.Struct, frozen=True, kw_only=True):
    """What an import without trust changed in a session, besides marking where it came from.

    `cwd`, `key`, `scope` and `agent` are the values that it had and has no longer. `goal` is the
    goal that was paused, `queued` counts the input that was set aside, `system` the messages that
    became user messages, `raw` those that have data of a provider, which is no longer sent to it.
    `records` counts the records, whose kinds begin with `imported:` now.
    """

    session_id: str
    cwd: str | None = None
    key: str | None = None
    scope: str | None = None
    agent: str | None = None
    pinned: bool = False
    goal: str | None = None
    queued: int = 0
    system: int = 0
    raw: int = 0
    records: int = 0


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `import_` added, which sessions were already stored, and what could not be read.

    A `redacted` file is not a complete copy: secrets were removed from it. Without `trusted` the
    `demotions` say what was changed; a session that needed no change has none.

    `records` counts those of the sessions. Records of the store are added only if the file is
    trusted and the store has none of that scope, kind and key; `records_left_out` counts the rest.
    """

    sessions: int
    messages: int
    records: int
    skipped: tuple[str, ...]
    damage: tuple[Damage, ...]
    store_records: int = 0
    records_left_out: int = 0
    redacted: bool = False
    trusted: bool = False
    demotions: tuple[Demotion, ...] = ()


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `load` stored; `skipped` are the messages and records that were stored already."""

    sessions: int
    messages: int
    records: int
    skipped: int


class StoreContents(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and a hash of everything in a store; stores with the same contents are equal."""

    sessions: int
    messages: int
    records: int
    store_records: int
    turns: int
    queued: int
    blobs: int
    sha256: str


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `copy` copied, and the contents of both stores, which were read again and compared.

    The sessions of `changed` were written to or created in the source since they were read; those
    of `differs` were not, and differ. `interrupted` ones had an open turn, which has no holder in
    the target. `others` counts sessions that are only in the target.
    """

    added: int
    renewed: int
    unchanged: int
    changed: tuple[str, ...]
    differs: tuple[str, ...]
    interrupted: tuple[str, ...]
    others: int
    damage: tuple[Damage, ...]
    source: StoreContents
    target: StoreContents

    @property
    def same(self) -> bool:
        """Whether the target now has the contents of the source, and nothing was damaged."""
        return self.source == self.target and not self.damage


class Growth(msgspec.Struct, frozen=True):
    """The sessions created on one day, and the messages they have now."""

    day: date
    sessions: int
    messages: int


class DayUsage(msgspec.Struct, frozen=True):
    """The usage and cost of one model on one day (UTC), in all sessions."""

    day: date
    model: str | None
    usage: Usage
    cost: Decimal


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How much a store contains. `messages` counts a message that forks share once.

    `file_bytes` is `None` where other tenants share the files: their growth is not this one's.
    """

    sessions: int
    trashed: int
    branches: int
    messages: int
    turns: int
    open_turns: int
    blobs: int
    blob_bytes: int
    file_bytes: int | None
    growth: tuple[Growth, ...]
    days: tuple[DayUsage, ...]


class Activity(msgspec.Struct, frozen=True):
    """A write to a session. `number` grows with every write; pass it as `since`."""

    number: int
    session_id: str
    head: Head


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A search result: a message, or a session by its title (then there is no message).

    `marks` are the ranges of `snippet` that match. `more` counts the other hits in sessions that
    share history with this one. `before` and `after` are its neighbours, if requested.
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

    `bytes` is its size on disk, `text` the approximate size of the indexed text. `none` means that
    this store has no index. Searches are correct in every state.
    """

    state: IndexState
    path: str | None = None
    messages: int = 0
    behind: int = 0
    bytes: int = 0
    text: int = 0


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list, and the cursor of the next page (`None` at the end).

    `behind`: the number of older messages that a search has not searched, because its index is
    still catching up with them, or because it has no index and reached the store's deadline; 0 if
    it missed nothing.
    """

    items: tuple[T, ...]
    cursor: str | None = None
    behind: int = 0

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items."""
        return iter(self.items)

    def __len__(self) -> int:
        """Return the number of items on this page."""
        return len(self.items)
