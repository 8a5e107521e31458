"""Every key is described, and its default is that of the agent."""

from typing import get_args

import msgspec
import pytest

import holdfast
from holdfast.agent import Context, Limits, Retry
from holdfast.agent.approval import is_plain
from holdfast.agent.tools.builtin import all_tools
from holdfast.aio.store import AsyncStore
from holdfast.config import schema
from holdfast.config.schema import Settings
from holdfast.errors import BadQuery
from holdfast.operations.retention_rules import parse_duration


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


def test_what_needs_trust_is_there() -> None:
    assert schema.all_keys().keys() >= schema.NEEDS_TRUST | schema.USER_ONLY


def test_every_way_to_run_code_or_reach_elsewhere_needs_trust() -> None:
    """A new key of these tables needs trust until it is listed here as safe."""
    known = schema.all_keys()
    for table in ("approve", "retention"):
        assert {key for key in known if key.startswith(f"{table}.")} <= schema.NEEDS_TRUST
    model = {key for key in known if key.startswith("model.")} - schema.NEEDS_TRUST
    assert model == {"model.name", "model.context", "model.max_output"}
    # It selects the conversation: a workspace must not choose the user's most private one.
    session = {key for key in known if key.startswith("session.")} - schema.NEEDS_TRUST
    assert session == {"session.restore"}


def test_the_tools_are_those_there_are() -> None:
    with holdfast.open("memory:") as store:
        tools = all_tools(None, AsyncStore(store))
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
