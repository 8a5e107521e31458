"""Updating a session's identity: typed, merged, and never changing messages."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from holdfast.errors import BadMessage, BadQuery, PreconditionFailed
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.values import Goal, Message

_GOAL = Goal(
    "ship \0 it \ud800",
    summary="s",
    state="blocked",
    started_at=datetime(2024, 1, 2, tzinfo=UTC),
    ended_at=datetime(2024, 1, 3, tzinfo=UTC),
    recap="r",
    rounds=4,
)


class UpdateTests(StoreFixtures):
    """`Session.update`."""

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("title", "A title \0 \ud800 😀"),
            ("model", "m"),
            ("cwd", "/tmp/\udcff"),  # noqa: S108 - a file name that is no UTF-8, as Python has it
            ("scope", "agent/one"),
            ("pinned", True),
            ("archived", True),
            ("goal", _GOAL),
            ("goal", Goal("only")),
            ("metadata", {"k": {"deep": [1, None, "\ud800"]}}),
        ],
    )
    def test_a_field_is_changed_alone(
        self,
        store: Store,
        session: Session,
        field: str,
        value: Any,  # noqa: ANN401
    ) -> None:
        """The receipt, `info` and lists have it; all other fields are unchanged."""
        before = session.info()
        info = session.update(**{field: value})
        assert getattr(info, field) == value
        again = self.reopen(store)
        assert again.session("the session").info() == info
        assert again.sessions().items == (info,)
        for other in (f for f in before.__struct_fields__ if f not in {field, "title_by"}):
            assert getattr(info, other) == getattr(before, other), other

    @pytest.mark.parametrize("field", ["title", "model", "cwd", "scope", "goal"])
    def test_none_takes_a_field_away(self, session: Session, field: str) -> None:
        """Afterwards the field is as if it had never been set."""
        before = session.info()
        session.update(title="t", model="m", cwd="/", scope="s", goal=_GOAL)
        nothing: dict[str, Any] = {field: None}
        assert getattr(session.update(**nothing), field) is None
        session.update(title=None, model=None, cwd=None, scope=None, goal=None)
        assert session.info() == before

    def test_the_users_title_is_never_replaced_by_a_programs(self, session: Session) -> None:
        """An automatic title gives way to another and to the user's; the user's stays."""
        info = session.update(auto_title="guess")
        assert (info.title, info.title_by) == ("guess", "auto")
        assert session.update(auto_title="better guess").title == "better guess"
        info = session.update(title="mine")
        assert (info.title, info.title_by) == ("mine", "user")
        info = session.update(auto_title="guess again")
        assert (info.title, info.title_by) == ("mine", "user")
        assert session.update(auto_title=None).title == "mine"
        info = session.update(title=None)
        assert (info.title, info.title_by) == (None, None)
        assert session.update(auto_title="guess").title == "guess"

    def test_a_title_given_at_the_start_is_the_users(self, store: Store) -> None:
        """It is not replaced by an automatic one either."""
        session = store.create(title="mine")
        assert session.update(auto_title="guess").title == "mine"

    def test_metadata_merges(self, session: Session) -> None:
        """Keys that are not named stay; `None` removes one, at the top alone."""
        session.update(metadata={"a": 1, "b": {"x": 1, "y": None}})
        info = session.update(metadata={"c": False, "a": None, "never": None})
        assert info.metadata == {"b": {"x": 1, "y": None}, "c": False}
        assert session.update(metadata={"b": {"z": 1}}).metadata == {"b": {"z": 1}, "c": False}
        assert session.update(metadata={}).metadata == {"b": {"z": 1}, "c": False}

    def test_metadata_given_at_the_start_follows_the_same_rule(self, store: Store) -> None:
        """A key with `None` is removed, at creation as in updates."""
        session = store.create(metadata={"a": None, "b": 1})
        assert session.info().metadata == session.update(metadata={"c": None}).metadata

    def test_threads_that_merge_at_once(self, session: Session) -> None:
        """Each key is there: merging happens inside the write."""
        keys = [f"k{n}" for n in range(8)]
        run_concurrently(*(partial(session.update, metadata={key: key}) for key in keys))
        assert session.info().metadata == {key: key for key in keys}

    def test_metadata_keeps_what_json_has(self, session: Session) -> None:
        """Large numbers, small ones, and any text."""
        value = {"big": 2**80, "float": 1e-300, "neg": -0.5, "\0": "\ud800", "": [[], {}]}
        assert session.update(metadata=value).metadata == value  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"colour": "red"}, "colour"),
            ({"key": "x"}, "key"),
            ({"agent": "x"}, "agent"),
            ({"title": 5}, "title"),
            ({"title": b"t"}, "title"),
            ({"auto_title": 5}, "auto_title"),
            ({"model": 5}, "model"),
            ({"cwd": 5}, "cwd"),
            ({"scope": ["x"]}, "scope"),
            ({"title": "x" * 5000}, "title"),
            ({"pinned": 1}, "pinned"),
            ({"pinned": None}, "pinned"),
            ({"archived": "yes"}, "archived"),
            ({"goal": "win"}, "goal"),
            ({"goal": Goal(5)}, "goal"),  # type: ignore[arg-type]
            ({"goal": Goal("x", state="lost")}, "goal"),  # type: ignore[arg-type]
            ({"goal": Goal("x", rounds=1.5)}, "goal"),  # type: ignore[arg-type]
            ({"goal": Goal("x", summary=b"bytes")}, "goal"),  # type: ignore[arg-type]
            ({"goal": Goal("x", started_at="now")}, "goal"),  # type: ignore[arg-type]
            ({"expect_goal": "win"}, "expect_goal"),
            ({"expect_goal": Goal("x", rounds=1.5)}, "expect_goal"),  # type: ignore[arg-type]
            ({"metadata": None}, "metadata"),
            ({"metadata": [1]}, "metadata"),
            ({"metadata": {1: 2}}, "metadata"),
            ({"metadata": {"k": float("nan")}}, "metadata"),
            ({"metadata": {"k": object()}}, "metadata"),
        ],
    )
    def test_a_bad_change_is_refused(
        self, store: Store, session: Session, changes: dict[str, Any], field: str
    ) -> None:
        """`BadMessage` names the field; nothing of the call is stored, and all stays readable."""
        before = session.info()
        with pytest.raises(BadMessage) as refused:
            session.update(**{"cwd": "/new", **changes})
        assert field in str(refused.value)
        assert session.info() == before
        assert store.sessions().items == (before,)

    @pytest.mark.parametrize(
        ("said", "field"),
        [
            ({"scope": 5}, "scope"),
            ({"title": b"x"}, "title"),
            ({"agent": ""}, "agent"),
            ({"model": 5}, "model"),
            ({"cwd": 5}, "cwd"),
            ({"metadata": []}, "metadata"),
            ({"metadata": "x"}, "metadata"),
            ({"metadata": {"k": {1}}}, "metadata"),
        ],
    )
    def test_a_bad_beginning_is_refused(
        self, store: Store, said: dict[str, Any], field: str
    ) -> None:
        """No session is created from values that cannot be stored."""
        with pytest.raises(BadMessage, match=field):
            store.create(**said)
        with pytest.raises(BadMessage, match=field):
            store.session("k", **said)
        assert len(store.sessions()) == 0

    def test_titles_that_are_made(self, store: Store) -> None:
        """For sessions without a title that have messages, newest first; in one short line."""
        store.session("titled", title="mine").append(Message.user("a"))
        store.session("guessed").append(Message.user("b"))
        store.session("guessed").update(auto_title="guess")
        store.session("empty")
        for key in ("old", "left", "new"):
            store.session(key).append(Message.user(f"{key} words"))
        called_with: list[str | None] = []

        def make(session: Session) -> str | None:
            called_with.append(session.key)
            words = session.messages(limit=1)[0].text
            return None if session.key == "left" else f" About\n {words} " + "x" * 200

        titled = store.make_titles(make)
        assert called_with == ["new", "left", "old"]
        assert [info.key for info in titled] == ["new", "old"]
        again = self.reopen(store)
        for info in titled:
            assert info.title == f"About {info.key} words " + "x" * (120 - len(info.key or "") - 13)
            assert (info.title_by, again.session(info.key or "").info()) == ("auto", info)
        assert again.session("titled").info().title == "mine"
        assert again.session("guessed").info().title == "guess"
        assert again.make_titles(lambda _: "", limit=2) == []
        with pytest.raises(BadQuery, match="limit"):
            again.make_titles(make, limit=0)

    def test_the_users_title_wins_over_one_that_is_being_made(
        self, store: Store, session: Session
    ) -> None:
        """Also if it is set while `make` runs; and what `make` raises reaches the caller."""
        session.append(Message.user("a"))

        def make(session: Session) -> str:
            session.update(title="mine")
            return "made"

        assert [info.title for info in store.make_titles(make)] == ["mine"]
        assert (session.info().title, session.info().title_by) == ("mine", "user")
        store.create().append(Message.user("b"))
        with pytest.raises(ZeroDivisionError):
            store.make_titles(lambda _: str(1 // 0))

    @pytest.mark.parametrize("goal", [None, Goal("only"), _GOAL])
    def test_a_goal_is_changed_if_it_is_the_one_expected(
        self, store: Store, session: Session, goal: Goal | None
    ) -> None:
        """Any goal, also none; only the goal is compared."""
        session.update(goal=goal)
        session.update(title="meanwhile")
        info = session.update(goal=Goal("next"), expect_goal=goal)
        assert (info.goal, info.title) == (Goal("next"), "meanwhile")
        assert self.reopen(store).session("the session").info() == info

    @pytest.mark.parametrize("expected", [None, Goal("x"), Goal("x", rounds=1), _GOAL])
    def test_a_goal_that_is_another_by_now_is_kept(
        self, session: Session, expected: Goal | None
    ) -> None:
        """`PreconditionFailed`, and nothing of the call is stored."""
        session.update(goal=Goal("x", summary="noted meanwhile"))
        before = session.info()
        with pytest.raises(PreconditionFailed, match="nothing was stored"):
            session.update(goal=Goal("mine"), title="new", expect_goal=expected)
        with pytest.raises(PreconditionFailed):
            session.update(pinned=True, expect_goal=expected)
        assert session.info() == before

    def test_threads_that_change_a_goal_at_once(self, session: Session) -> None:
        """Of many callers that expect the same goal one succeeds; no change is lost."""
        session.update(goal=Goal("count"))

        def count() -> None:
            while True:
                goal = session.info().goal
                assert goal is not None
                more = Goal("count", rounds=goal.rounds + 1)
                with suppress(PreconditionFailed):
                    session.update(goal=more, expect_goal=goal)
                    return

        run_concurrently(*[count] * 8)
        assert session.info().goal == Goal("count", rounds=8)

    def test_updates_go_through_while_a_turn_is_open(self, session: Session) -> None:
        """The turn is not affected."""
        with session.turn() as turn:
            session.update(title="t")
            turn.user("a")
        assert session.info().title == "t"

    def test_what_was_said_stays(self, session: Session) -> None:
        """No update touches a message, a count or the head."""
        session.append(Message.user("a"))
        head, said = session.head(), session.messages()
        session.update(title="t", metadata={"k": 1}, goal=_GOAL, archived=True)
        assert (session.head(), session.messages()) == (head, said)
