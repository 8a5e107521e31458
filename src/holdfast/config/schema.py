"""Every key of `holdfast.toml`: its type, its bounds, what it is without a word, what it means.

The keys are the fields of frozen structs, one struct for each table of the file, and a field's
description is what the documentation and `holdfast config` say of it. A key of the user's file
holds everywhere. A file that lies in a workspace may come from strangers, so it may not set
`NEEDS_TRUST`: what lets commands run without a question, sends requests or keys elsewhere, or leads
to other conversations.
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

# A title says what is expected, in words. Above every bound is a mistake: a limit that never comes.
_Count: TypeAlias = Annotated[
    int, Meta(ge=1, le=1_000_000, title="a whole number from 1 to 1,000,000")
]
_CountOrNone: TypeAlias = Annotated[
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
_SomeSeconds: TypeAlias = Annotated[
    float, Meta(ge=0.01, le=86_400, title="a number from 0.01 to 86,400")
]
_Share: TypeAlias = Annotated[float, Meta(ge=0.1, le=1, title="a number from 0.1 to 1")]
_Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000, title="a text")]
_Age: TypeAlias = Annotated[
    str, Meta(pattern=r"^[0-9]{1,5}[hdwmy]\Z", title="a time such as 12h, 30d, 8w, 6m or 1y")
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
        title="an address that begins with http:// or https:// and has no password in it",
    ),
]
_Command: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[\w\-./,:@+=% ]*[\w\-./,:@+=%][\w\-./,:@+=% ]*\Z",
        max_length=1000,
        title="plain words such as git status, without signs that a shell understands",
    ),
]
_Price: TypeAlias = Annotated[Decimal, Meta(title="a number, 0 or more")]

Strategy: TypeAlias = Literal["summarize", "truncate"]
Broken: TypeAlias = Literal["continue", "anew"]
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
    """Which model answers, and how it is reached."""

    name: Annotated[
        _Text | None,
        Meta(description="The model: `openai:NAME`, `anthropic:NAME`, `local` or `local:PATH`."),
    ] = None
    base_url: Annotated[
        _Address | None,
        Meta(description="Where an OpenAI-compatible server answers, such as a local one."),
    ] = None
    api_key_env: Annotated[
        _Variable | None,
        Meta(description="The environment variable that holds the key. The key is never in here."),
    ] = None
    context: Annotated[
        _Tokens | None,
        Meta(description="How many tokens fit into a request and its reply, if it is not known."),
    ] = None
    max_output: Annotated[
        _Count | None, Meta(description="How many tokens a reply may have at most.")
    ] = None


class RetryTable(msgspec.Struct, frozen=True, kw_only=True):
    """How a call that failed is tried again."""

    attempts: Annotated[
        _Attempts,
        Meta(description="How often a call is made at most; 1 never tries again."),
    ] = 5
    base: Annotated[
        _Seconds, Meta(description="Seconds before the second attempt; they double each time.")
    ] = 0.5
    max: Annotated[_Seconds, Meta(description="Seconds between two attempts at most.")] = 30.0
    jitter: Annotated[
        _Seconds,
        Meta(description="Seconds at most that chance adds, so that not all come at once."),
    ] = 1.0
    longest: Annotated[
        _Seconds, Meta(description="Seconds at most that a provider's own wish to wait is kept.")
    ] = 300.0
    broken: Annotated[
        Broken,
        Meta(
            description="What becomes of a reply that broke off: `continue` it behind what is "
            "kept, or begin `anew`."
        ),
    ] = "continue"


class WindowTable(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is sent of a long history."""

    max_tokens: Annotated[
        _Tokens | None,
        Meta(
            description="How many tokens a request and its reply have at most; without it, as many "
            "as the model takes."
        ),
    ] = None
    reserve: Annotated[
        _Count | None,
        Meta(description="How many of them are left for the reply; without it, it is reckoned."),
    ] = None
    threshold: Annotated[
        _Share, Meta(description="How full a window is, of 1, when its history is summarised.")
    ] = 0.8
    keep_recent: Annotated[
        _Count, Meta(description="How many of the newest messages no summary stands for.")
    ] = 20
    strategy: Annotated[
        Strategy,
        Meta(
            description="What makes room: `summarize`, or `truncate`, which leaves out what is "
            "between the first user message and the newest."
        ),
    ] = "summarize"


class SessionTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where conversations are kept, and which one goes on."""

    store: Annotated[
        _Text | None,
        Meta(description="Path or URL of the store; a relative path begins where this file is."),
    ] = None
    scope: Annotated[
        _Text | None, Meta(description="The scope of new sessions, and of the one that goes on.")
    ] = None
    restore: Annotated[
        bool, Meta(description="Whether `holdfast chat` goes on with the latest session.")
    ] = True


class RetentionTable(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions go by themselves. Without a word here, none ever does."""

    older_than: Annotated[
        _Age | None,
        Meta(
            description="Sessions idle for so long (`12h`, `30d`, `6m`, `1y`) go to the trash when "
            "`chat` or `run` starts."
        ),
    ] = None


class ToolsTable(msgspec.Struct, frozen=True, kw_only=True):
    """What a model may use."""

    enabled: Annotated[
        tuple[ToolName, ...] | None,
        Meta(description="The names of the tools there are; without it all, with `[]` none."),
    ] = None
    timeout: Annotated[
        _SomeSeconds,
        Meta(description="Seconds after which a command is ended."),
    ] = 120.0
    output: Annotated[
        _Characters,
        Meta(description="How many characters of a tool's output a model is shown at once."),
    ] = 20_000
    keep: Annotated[
        tuple[_Variable, ...],
        Meta(
            description="Environment variables that commands see beside the usual ones. What they "
            "hold, a model can read."
        ),
    ] = ()


class ApproveTable(msgspec.Struct, frozen=True, kw_only=True):
    """What is done without asking you first."""

    commands: Annotated[
        tuple[_Command, ...],
        Meta(
            description="Commands that may run, by their first words: `git status` allows "
            "`git status -s`, and nothing with shell syntax in it."
        ),
    ] = ()
    writes: Annotated[
        bool, Meta(description="Whether files of the workspace may be written and edited.")
    ] = False


class LimitsTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where the agent stops."""

    rounds: Annotated[
        _Count, Meta(description="How many calls of the model a turn may have, tools in between.")
    ] = 50
    goal_rounds: Annotated[
        _CountOrNone,
        Meta(description="How many turns in a row the agent works on a goal by itself."),
    ] = 20
    idle: Annotated[
        _Seconds,
        Meta(description="Seconds without a word after which a reply is given up; 0 never."),
    ] = 120.0
    idle_in_goal: Annotated[
        bool, Meta(description="Whether that holds while a goal is worked on, too.")
    ] = True
    parallel: Annotated[_Parallel, Meta(description="How many tools run at the same time.")] = 8


class PriceTable(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens of a model cost."""

    input: Annotated[_Price, Meta(description="What is sent.")]
    output: Annotated[_Price, Meta(description="What is answered.")]
    cache_read: Annotated[
        _Price | None, Meta(description="What is sent and known already; without it, as input.")
    ] = None
    cache_write: Annotated[
        _Price | None, Meta(description="What is sent to be known later; without it, as input.")
    ] = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set."""

    trusted: Annotated[
        tuple[_Text, ...],
        Meta(
            description="Directories whose own `holdfast.toml` may set everything. Only your own "
            "file can say so."
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
            description="What models cost, where the table that comes with Holdfast is not right."
        ),
    ] = {}


# What a workspace may not set unless the user trusts it.
NEEDS_TRUST: Final = frozenset(
    {
        "model.base_url",
        "model.api_key_env",
        "session.store",
        "session.scope",
        "retention.older_than",
        "tools.enabled",
        "tools.keep",
        "approve.commands",
        "approve.writes",
        "prices",
    }
)
# What only the user's own file may say.
USERS_OWN: Final = frozenset({"trusted"})


class Key(NamedTuple):
    """A key: its full name, what it may be, what it is without a word, what it means."""

    name: str
    type: object
    default: object
    about: str


@cache
def every_key() -> dict[str, Key]:
    """List every key by its full name, in the order of the tables."""
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
    """List the tables of plain keys, and what each is about."""
    return {
        name: (hint.__doc__ or "").strip()
        for name, hint in _hints(Settings).items()
        if _is_table(hint)
    }


def price_keys() -> dict[str, Key]:
    """List the keys of one model's prices."""
    return {name: _key(name, hint, PriceTable, name) for name, hint in _hints(PriceTable).items()}


def expected(hint: object) -> str:
    """Say in words what a key of this type may be."""
    for note in getattr(hint, "__metadata__", ()):
        if note.title:
            return str(note.title)
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        return expected(inner[0])
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if get_origin(hint) is tuple:
        return f"a list, each of it {expected(inner[0])}"
    if get_origin(hint) is dict:
        return "tables"
    return "true or false" if hint is bool else expected(inner[0])


def _hints(struct: type) -> dict[str, type]:
    return get_type_hints(struct, include_extras=True)


def _is_table(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _key(name: str, hint: object, struct: type, field: str) -> Key:
    notes: tuple[Meta, ...] = getattr(hint, "__metadata__", ())
    about = next(note.description for note in reversed(notes) if note.description)
    info = next(f for f in msgspec.structs.fields(struct) if f.name == field)
    default = (
        info.default_factory() if info.default_factory is not msgspec.NODEFAULT else info.default
    )
    return Key(name, hint, default, about)
