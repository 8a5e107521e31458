"""Every key of `holdfast.toml`: its type, bounds, default and description.

The keys are the fields of frozen structs, one struct for each table of the file; docs and
`holdfast config` show the fields' descriptions. The user's file may set every key. A workspace's
file may come from someone the user does not trust, so it may only do what `WORKSPACE_RIGHTS` says:
set a key, or lower a limit. Every other key could let commands run without approval, send requests
or API keys elsewhere, select other conversations, or raise what the user pays.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import (
    Annotated,
    Final,
    Literal,
    NamedTuple,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

# A title describes the type in error messages. The upper bounds catch typing errors: a limit that
# would never be reached.
_Count: TypeAlias = Annotated[
    int, Meta(ge=1, le=1_000_000, title="a whole number from 1 to 1,000,000")
]
_CountOrZero: TypeAlias = Annotated[
    int, Meta(ge=0, le=1_000_000, title="a whole number from 0 to 1,000,000")
]
_Attempts: TypeAlias = Annotated[int, Meta(ge=1, le=100, title="a whole number from 1 to 100")]
_Parallel: TypeAlias = Annotated[int, Meta(ge=1, le=64, title="a whole number from 1 to 64")]
_Characters: TypeAlias = Annotated[
    int, Meta(ge=200, le=10_000_000, title="a whole number from 200 to 10,000,000")
]
_Tokens: TypeAlias = Annotated[
    int, Meta(ge=256, le=100_000_000, title="a whole number from 256 to 100,000,000")
]
_Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=86_400, title="a number from 0 to 86,400")]
_PositiveSeconds: TypeAlias = Annotated[
    float, Meta(ge=0.01, le=86_400, title="a number from 0.01 to 86,400")
]
_Share: TypeAlias = Annotated[float, Meta(ge=0.1, le=1, title="a number from 0.1 to 1")]
_Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000, title="a string")]
_Age: TypeAlias = Annotated[
    str, Meta(pattern=r"^[0-9]{1,5}[hdwmy]\Z", title="a duration such as 12h, 30d, 8w, 6m or 1y")
]
_Variable: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z",
        max_length=200,
        title="the name of an environment variable",
    ),
]
_Address: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s/@]+(/[^\s@]*)?\Z",
        max_length=2000,
        title="an http:// or https:// URL without a user name or password",
    ),
]
_Command: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[\w\-./,:@+=% ]*[\w\-./,:@+=%][\w\-./,:@+=% ]*\Z",
        max_length=1000,
        title="plain words such as wc -l, without shell syntax",
    ),
]
_Price: TypeAlias = Annotated[Decimal, Meta(title="a number from 0 to 1,000,000")]

Strategy: TypeAlias = Literal["summarize", "truncate"]
BrokenReply: TypeAlias = Literal["continue", "anew"]
SeenSessions: TypeAlias = Literal["here", "all"]
ToolName: TypeAlias = Literal[
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search_files",
    "run_command",
    "session_search",
    "session_read",
    "read_output",
    "create_goal",
    "update_goal",
    "complete_goal",
]


class ModelTable(msgspec.Struct, frozen=True, kw_only=True):
    """Which model is used, and how to reach it."""

    name: Annotated[
        _Text | None,
        Meta(description="The model: `openai:NAME`, `anthropic:NAME`, `local` or `local:PATH`."),
    ] = None
    base_url: Annotated[
        _Address | None,
        Meta(description="The URL of an OpenAI-compatible server, such as a local one."),
    ] = None
    api_key_env: Annotated[
        _Variable | None,
        Meta(
            description="The environment variable that holds the API key; the key itself is never "
            "in this file."
        ),
    ] = None
    context: Annotated[
        _Tokens | None,
        Meta(
            description="The context window in tokens (request and reply), if the model's size is "
            "not known."
        ),
    ] = None
    max_output: Annotated[
        _Count | None, Meta(description="The maximum number of tokens in a reply.")
    ] = None


class RetryTable(msgspec.Struct, frozen=True, kw_only=True):
    """How failed calls of the model are retried."""

    attempts: Annotated[
        _Attempts,
        Meta(description="The maximum number of attempts for a call; 1 disables retries."),
    ] = 5
    base: Annotated[
        _Seconds,
        Meta(description="Seconds before the second attempt; doubled before each further one."),
    ] = 0.5
    max: Annotated[
        _Seconds, Meta(description="The maximum number of seconds between two attempts.")
    ] = 30.0
    jitter: Annotated[
        _Seconds,
        Meta(
            description="The maximum number of random seconds added to each delay, to spread the "
            "retries of many clients."
        ),
    ] = 1.0
    longest: Annotated[
        _Seconds,
        Meta(
            description="The longest delay in seconds that is granted to a provider; if it asks "
            "for more, the call is not retried."
        ),
    ] = 300.0
    broken: Annotated[
        BrokenReply,
        Meta(
            description="What to do with a reply whose stream broke off: `continue` after the part "
            "received, or start `anew`."
        ),
    ] = "continue"


class WindowTable(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a long history is sent to the model."""

    max_tokens: Annotated[
        _Tokens | None,
        Meta(
            description="The maximum number of tokens in a request and its reply; by default the "
            "context window of the model."
        ),
    ] = None
    reserve: Annotated[
        _Count | None,
        Meta(
            description="How many of these tokens are reserved for the reply; computed by default."
        ),
    ] = None
    threshold: Annotated[
        _Share,
        Meta(description="The fraction of the window in use at which the history is summarised."),
    ] = 0.8
    keep_recent: Annotated[
        _Count, Meta(description="How many of the newest messages are never replaced by a summary.")
    ] = 20
    strategy: Annotated[
        Strategy,
        Meta(
            description="How to make room: `summarize`, or `truncate`, which leaves out the "
            "messages between the first user message and the newest ones."
        ),
    ] = "summarize"


class SessionTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where conversations are stored, and which one is resumed."""

    store: Annotated[
        _Text | None,
        Meta(
            description="Path or URL of the store; a relative path starts at the directory of this "
            "file."
        ),
    ] = None
    scope: Annotated[
        _Text | None, Meta(description="The scope of new sessions, and of the one that is resumed.")
    ] = None
    restore: Annotated[
        bool, Meta(description="Whether `holdfast chat` resumes the latest session.")
    ] = True


class RetentionTable(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions are moved to the trash automatically. By default, none."""

    older_than: Annotated[
        _Age | None,
        Meta(
            description="Sessions idle for longer than this (`12h`, `30d`, `6m`, `1y`) are moved "
            "to the trash when `chat` or `run` starts."
        ),
    ] = None


class ToolsTable(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that the model may call."""

    enabled: Annotated[
        tuple[ToolName, ...] | None,
        Meta(description="The names of the tools to offer; all by default, none with `[]`."),
    ] = None
    timeout: Annotated[
        _PositiveSeconds,
        Meta(description="Seconds after which a command is terminated."),
    ] = 120.0
    output: Annotated[
        _Characters,
        Meta(description="How many characters of a tool's output the model gets at once."),
    ] = 20_000
    keep: Annotated[
        tuple[_Variable, ...],
        Meta(
            description="Environment variables passed to commands in addition to the usual ones. "
            "The model can read their values."
        ),
    ] = ()
    sessions: Annotated[
        SeenSessions,
        Meta(
            description="The sessions that the model may search and read: those of this scope, or "
            "without a scope of this directory (`here`), or `all`."
        ),
    ] = "here"


class ApproveTable(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent may do without asking you first."""

    commands: Annotated[
        tuple[_Command, ...],
        Meta(
            description="Commands that may run, by their first words: `wc -l` allows `wc -l "
            "notes.txt`, but nothing that contains shell syntax."
        ),
    ] = ()
    writes: Annotated[
        bool,
        Meta(
            description="Whether files in the workspace may be written and edited, except those "
            "that configure programs."
        ),
    ] = False
    reads: Annotated[
        bool,
        Meta(
            description="Whether files that may hold secrets (`.env`, `.ssh`, `*.pem`), and all "
            "files where your home directory is, may be read."
        ),
    ] = False


class LimitsTable(msgspec.Struct, frozen=True, kw_only=True):
    """Limits after which the agent stops."""

    rounds: Annotated[
        _Count, Meta(description="The maximum number of model calls in one turn.")
    ] = 50
    goal_rounds: Annotated[
        _CountOrZero,
        Meta(
            description="The maximum number of consecutive turns that the agent works on a goal on "
            "its own."
        ),
    ] = 20
    idle: Annotated[
        _Seconds,
        Meta(
            description="Seconds without output from the model after which a reply is cancelled; 0 "
            "disables this."
        ),
    ] = 120.0
    idle_in_goal: Annotated[
        bool, Meta(description="Whether `idle` also applies while the agent works on a goal.")
    ] = True
    parallel: Annotated[
        _Parallel, Meta(description="The maximum number of tool calls that run at the same time.")
    ] = 8


class PriceTable(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of a model, for one million tokens."""

    input: Annotated[_Price, Meta(description="Input tokens.")]
    output: Annotated[_Price, Meta(description="Output tokens.")]
    cache_read: Annotated[
        _Price | None,
        Meta(
            description="Input tokens read from the provider's cache; by default the price of "
            "`input`."
        ),
    ] = None
    cache_write: Annotated[
        _Price | None,
        Meta(
            description="Input tokens written to the provider's cache; by default the price of "
            "`input`."
        ),
    ] = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings."""

    trusted: Annotated[
        tuple[_Text, ...],
        Meta(
            description="Directories whose `holdfast.toml` may set every other key. Can only be "
            "set in your own file."
        ),
    ] = ()
    model: ModelTable = ModelTable()
    retry: RetryTable = RetryTable()
    window: WindowTable = WindowTable()
    session: SessionTable = SessionTable()
    retention: RetentionTable = RetentionTable()
    tools: ToolsTable = ToolsTable()
    approve: ApproveTable = ApproveTable()
    limits: LimitsTable = LimitsTable()
    prices: Annotated[
        dict[str, PriceTable],
        Meta(
            description="The prices of models, where Holdfast's built-in prices are wrong or "
            "missing."
        ),
    ] = {}


# What a workspace may do with a key although the user does not trust it: with any other, nothing.
WorkspaceRight: TypeAlias = Literal["set", "lower"]
WORKSPACE_RIGHTS: Final[dict[str, WorkspaceRight]] = {
    "model.name": "set",  # Only to another model of the provider that the user names.
    "model.context": "lower",
    "model.max_output": "lower",
    "retry.attempts": "lower",
    "retry.base": "lower",
    "retry.max": "lower",
    "retry.jitter": "lower",
    "retry.longest": "lower",
    "retry.broken": "set",
    "window.max_tokens": "lower",
    "window.reserve": "lower",
    "window.threshold": "set",
    "window.keep_recent": "set",
    "window.strategy": "set",
    "session.restore": "lower",
    "tools.timeout": "lower",
    "tools.output": "lower",
    "limits.rounds": "lower",
    "limits.goal_rounds": "lower",
    "limits.idle": "lower",
    "limits.parallel": "lower",
}
# Limits whose value 0 means that there is none.
ZERO_IS_UNLIMITED: Final = frozenset({"limits.idle"})
# Limits that never exceed what the model has, so that any value lowers one that is not set.
WITHIN_MODEL: Final = frozenset({"window.max_tokens"})
# Keys that only the user's own file may set.
USER_ONLY: Final = frozenset({"trusted"})


class ConfigKey(NamedTuple):
    """A key: its full name, type, default and description."""

    name: str
    type: object
    default: object
    description: str


@cache
def all_keys() -> dict[str, ConfigKey]:
    """Return every key by its full name, in the order of the tables."""
    found = {}
    for field, hint in _hints(Settings).items():
        if _is_table(hint):
            for inner, kind in _hints(hint).items():
                found[f"{field}.{inner}"] = _key(f"{field}.{inner}", kind, hint, inner)
        else:
            found[field] = _key(field, hint, Settings, field)
    return found


@cache
def tables() -> dict[str, str]:
    """Return the tables (except `prices`) and their descriptions."""
    return {
        name: (hint.__doc__ or "").strip()
        for name, hint in _hints(Settings).items()
        if _is_table(hint)
    }


@cache
def price_keys() -> dict[str, ConfigKey]:
    """Return the keys of one model's prices."""
    return {name: _key(name, hint, PriceTable, name) for name, hint in _hints(PriceTable).items()}


def describe_type(hint: object) -> str:
    """Return a description of a key's type for docs and error messages."""
    for note in getattr(hint, "__metadata__", ()):
        if note.title:
            return str(note.title)
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        return describe_type(inner[0])
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if get_origin(hint) is tuple:
        return f"a list, each item {describe_type(inner[0])}"
    if get_origin(hint) is dict:
        return "tables"
    return "true or false" if hint is bool else describe_type(inner[0])


def _hints(struct: type) -> dict[str, type]:
    return get_type_hints(struct, include_extras=True)


def _is_table(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _key(name: str, hint: object, struct: type, field: str) -> ConfigKey:
    notes: tuple[Meta, ...] = getattr(hint, "__metadata__", ())
    about = next(note.description for note in reversed(notes) if note.description)
    info = next(f for f in msgspec.structs.fields(struct) if f.name == field)
    default = (
        info.default_factory() if info.default_factory is not msgspec.NODEFAULT else info.default
    )
    return ConfigKey(name, hint, default, about)
