"""The events of a turn.

What an event reports is stored before the event is emitted; deltas are stored within the draft's
flush interval. As JSON every event has a `type`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from holdfast.values import Goal, LeftOut, Message, Recovered, ToolCall, TurnState, Usage


class TurnStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="turn_started"):
    """A turn is open; `recovered` describes an earlier turn that a crash left open."""

    turn_id: str
    model: str
    recovered: Recovered | None = None


class UserSaid(msgspec.Struct, frozen=True, tag_field="type", tag="user"):
    """The user's input is stored."""

    message: Message


class ModelCalled(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model_called"):
    """The model is called with a window of so many messages and tokens."""

    round: int
    attempt: int
    messages: int
    tokens: int
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """More of the reply."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """More of the model's thinking."""

    text: str


class ReplyStored(msgspec.Struct, frozen=True, tag_field="type", tag="reply"):
    """A reply is stored, complete or partial (`message.status`).

    `superseded`: it was cut off and the model starts over; windows leave it out.
    """

    message: Message
    superseded: bool = False


class Retrying(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="retrying"):
    """A call failed and is tried again after `wait` seconds."""

    attempt: int
    attempts: int
    wait: float
    error: str
    status: int | None = None


class ContextShrunk(msgspec.Struct, frozen=True, tag_field="type", tag="context_shrunk"):
    """The model rejected the window as too long; its token budget is lowered from now on."""

    before: int
    after: int


class ToolStarted(msgspec.Struct, frozen=True, tag_field="type", tag="tool_started"):
    """A tool starts; the ledger has recorded it."""

    call: ToolCall


class ToolEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_ended"):
    """A tool has finished, and its result is stored."""

    call: ToolCall
    message: Message
    error: bool
    ms: int


class GoalChanged(msgspec.Struct, frozen=True, tag_field="type", tag="goal"):
    """The goal was set, advanced by a round, or ended."""

    goal: Goal


class GoalPaused(msgspec.Struct, frozen=True, tag_field="type", tag="goal_paused"):
    """The agent reached a limit while working on its goal; the goal stays active."""

    goal: Goal
    why: str


class Summarized(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="summarized"):
    """A summary now replaces messages up to `upto` in windows; `by` is who made it."""

    upto: int
    by: Literal["model", "extract"]


class Titled(msgspec.Struct, frozen=True, tag_field="type", tag="titled"):
    """The session was given a title."""

    title: str


class TurnEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="turn_ended"):
    """The turn is over, and the session is free."""

    turn_id: str
    state: TurnState
    rounds: int
    usage: Usage
    cost: Decimal | None
    latency_ms: int
    error: str | None = None


Event: TypeAlias = (
    TurnStarted
    | UserSaid
    | ModelCalled
    | TextDelta
    | ThinkingDelta
    | ReplyStored
    | Retrying
    | ContextShrunk
    | ToolStarted
    | ToolEnded
    | GoalChanged
    | GoalPaused
    | Summarized
    | Titled
    | TurnEnded
)
