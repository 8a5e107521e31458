"""Tokens and money: summed exactly per turn, session and model."""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import partial

from holdfast.errors import Invalid
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.validation import MAX_COST, MAX_TOKEN_COUNT
from holdfast.values import Head, Message, ModelUsage, Usage

_DAY = 86_400
_CENT = Decimal("0.01")


class UsageTests(StoreFixtures):
    """`usage`, `info` and `turns` agree."""

    def test_sums_by_turn_session_and_model(self, store: Store, session: Session) -> None:
        """Every count and the cost, also over several days."""
        session.append(Message.assistant("a", model="one", usage=Usage(1, 2, 3, 4, 5), cost=_CENT))
        with session.turn(model="two") as turn:
            turn.assistant("b", usage=Usage(10), cost=Decimal("0.1"))
            self.clock.advance(_DAY)
            turn.assistant("c", usage=Usage(20), cost=Decimal("0.2"))
            turn.assistant("d")
        session.append(Message.assistant("e", usage=Usage(output=7)))
        later = self.reopen(store).session("the session")
        report = later.usage()
        total = Usage(31, 9, 3, 4, 5)
        assert (report.usage, report.cost) == (total, Decimal("0.31"))
        assert (later.info().usage, later.info().cost) == (total, Decimal("0.31"))
        assert {m.model: m for m in report.by_model} == {
            "one": ModelUsage("one", Usage(1, 2, 3, 4, 5), _CENT),
            "two": ModelUsage("two", Usage(30), Decimal("0.3")),
            None: ModelUsage(None, Usage(output=7), Decimal(0)),
        }
        (info,) = later.turns()
        assert (info.usage, info.cost) == (Usage(30), Decimal("0.3"))

    def test_money_is_exact(self, session: Session) -> None:
        """A tenth, ten times, is one; a picodollar counts."""
        session.append(*(Message.assistant("a", cost=Decimal("0.1")) for _ in range(10)))
        session.append(Message.assistant("b", cost=Decimal("0.000000000001")))
        assert session.usage().cost == Decimal("1.000000000001")

    def test_money_does_not_depend_on_the_callers_context(self, session: Session) -> None:
        """A decimal context of low precision does not round what is stored."""
        cost = Decimal("123.456789")
        with localcontext(prec=4):
            session.append(Message.assistant("a", cost=cost), Message.assistant("b", cost=cost))
            found = (session.messages()[0].cost, session.usage().cost)
        assert found == (cost, Decimal("246.913578"))

    def test_a_retry_is_counted_once(self, session: Session) -> None:
        """A retry adds no usage."""
        message = Message.assistant("a", usage=Usage(5), cost=_CENT)
        for _ in range(3):
            session.append(message)
        assert session.usage().usage == session.info().usage == Usage(5)

    def test_no_usage_is_no_line(self, session: Session) -> None:
        """A session that used nothing reports nothing."""
        session.append(Message.user("a"))
        assert session.usage().by_model == ()
        assert session.usage().cost == Decimal(0)

    def test_models_are_distinguished_exactly(self, session: Session) -> None:
        """Any text is a model's name, and `None` is none."""
        names = ["m", "M", "m ", "m\0", "m\ud800", None]
        for name in names:
            session.append(Message.assistant("a", model=name, usage=Usage(1)))
        found = session.usage().by_model
        assert {m.model for m in found} == set(names)
        assert {m.usage.input for m in found} == {1}

    def test_threads_that_spend_at_once(self, session: Session) -> None:
        """No update is lost between reading a sum and writing it."""

        def spend() -> None:
            for _ in range(20):
                session.append(Message.assistant("a", model="m", usage=Usage(1, 2), cost=_CENT))

        run_concurrently(*(partial(spend) for _ in range(4)))
        assert session.usage().usage == session.info().usage == Usage(80, 160)
        assert session.usage().cost == Decimal("0.8")

    def test_the_largest_counts_add_up_or_are_refused(self, session: Session) -> None:
        """Sums beyond the database's integers never give a wrong result."""
        largest = [
            Message.assistant("a", usage=Usage(MAX_TOKEN_COUNT), cost=MAX_COST) for _ in range(1200)
        ]
        try:
            session.append(*largest)
        except Invalid:
            assert session.head() == Head(1, 0)
        else:
            assert session.usage().usage == session.info().usage == Usage(1200 * MAX_TOKEN_COUNT)
            assert session.usage().cost == session.info().cost == 1200 * MAX_COST
