"""Every key is described, and its default is that of the agent."""

from typing import get_args

import msgspec
import pytest

import holdfast
from holdfast.agent import Context, Limits, Retry
from holdfast.agent.approval import is_plain
from holdfast.agent.tools.builtin import workspace_tools
from holdfast.agent.tools.goal_tools import goal_tools
from holdfast.agent.tools.session_tools import session_tools
from holdfast.aio.store import AsyncStore
from holdfast.config import schema
from holdfast.config.schema import Settings
from holdfast.errors import BadQuery
from holdfast.operations.retention_rules import parse_duration

# Whatever counts, lasts or costs.
_LIMITS = {
    key
    for key, one in schema.all_keys().items()
    if key.startswith(("limits.", "retry.")) and isinstance(one.default, int | float)
}


def test_every_key_says_what_it_means_and_what_it_may_be() -> None:
    for key in schema.all_keys().values():
        assert key.description.endswith("."), key
        assert schema.describe_type(key.type), key
    assert "model.name" in schema.all_keys()
    assert "retry.attempts" in schema.all_keys()


def test_every_default_is_allowed_itself() -> None:
    for key in schema.all_keys().values():
        assert msgspec.convert(msgspec.to_builtins(key.default), key.type) == key.default


@pytest.mark.parametrize(
    ("table", "struct"), [("retry", Retry), ("window", Context), ("limits", Limits)]
)
def test_defaults_are_those_of_the_agent(table: str, struct: type) -> None:
    """An empty table changes nothing."""
    own, agents = getattr(Settings(), table), struct()
    for name in own.__struct_fields__:
        assert getattr(own, name) == getattr(agents, name), name
    assert Settings().tools.output == Limits().tool_output


def test_what_workspaces_have_rights_to_is_there() -> None:
    rights = schema.WORKSPACE_RIGHTS
    assert schema.all_keys().keys() >= rights.keys() | schema.USER_ONLY
    assert {right for key, right in rights.items() if key in _LIMITS} == {"lower"}
    assert {key for key, right in rights.items() if right == "lower"} >= schema.WITHIN_MODEL
    assert {key for key, right in rights.items() if right == "lower"} >= schema.ZERO_IS_UNLIMITED


def test_no_workspace_runs_code_or_reaches_elsewhere() -> None:
    """A new key of these tables needs trust until it is listed here as safe."""
    rights = schema.WORKSPACE_RIGHTS
    tables = {key.partition(".")[0] for key in rights}
    assert tables == {"model", "retry", "window", "session", "tools", "limits"}
    model = {key for key in rights if key.startswith("model.")}
    assert model == {"model.name", "model.context", "model.max_output"}
    # It selects the conversation: a workspace must not choose the user's most private one.
    assert {key for key in rights if key.startswith("session.")} == {"session.restore"}
    assert {key for key in rights if key.startswith("tools.")} == {"tools.timeout", "tools.output"}


def test_the_tools_are_those_there_are() -> None:
    with holdfast.open("memory:") as store:
        tools = (
            *workspace_tools("."),
            *session_tools(AsyncStore(store)),
            *goal_tools(),
        )
    assert sorted(get_args(schema.ToolName)) == sorted(tool.name for tool in tools)


@pytest.mark.parametrize(
    "text",
    ["ls", "git status", "make -j2", " ls", "ls;rm", "a|b", "$x", "ls\n", "", " ", "é x", "a*"],
)
def test_a_command_is_plain_words_as_the_agent_understands_them(text: str) -> None:
    kind = schema.all_keys()["approve.commands"].type
    try:
        msgspec.convert([text], kind)
        allowed = True
    except msgspec.ValidationError:
        allowed = False
    assert allowed == is_plain(text)


@pytest.mark.parametrize(
    "text", ["12h", "30d", "8w", "6m", "1y", "0d", "x", "30", "-1d", "1 d", "1d\n"]
)
def test_an_age_is_what_retention_takes(text: str) -> None:
    kind = schema.all_keys()["retention.older_than"].type
    try:
        msgspec.convert(text, kind)
        allowed = True
    except msgspec.ValidationError:
        allowed = False
    try:
        parse_duration(text, "older_than")
        taken = True
    except BadQuery:
        taken = False
    assert allowed == taken
