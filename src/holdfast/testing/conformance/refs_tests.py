"""The names of sessions: reserved names, titles ignoring case, and ambiguous names."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.errors import AmbiguousRef, BadRef, SessionNotFound
from holdfast.session import Session, number_of
from holdfast.storage.protocol import Query, Transaction
from holdfast.storage.rows import SessionRow
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.titles import normalize_title
from holdfast.values import Candidate, Message

# Letters that fold to others, to several, or together with an accent; and wildcard characters.
_LETTERS = (
    "aAkKsSeEiI0~%[*\0\ud800\u0301\u0307\u0345\u212a\u017f\u00df\u1e9e\ufb01\u00e9\u00c9\u0130\u0131"
    "\u03a3\u03c3\u03c2"
)

# Every operation that takes the name of a session and searches the untrashed ones first.
_USES: dict[str, Callable[[Store, str], str | None]] = {
    "get": lambda store, ref: store.get(ref).id,
    "parent": lambda store, ref: store.create(parent=ref).info().parent,
    "trash": lambda store, ref: store.trash(ref).id,
    "purge": lambda store, ref: store.purge(ref).session_id,
}


class RefTests(StoreFixtures):
    """Every operation that takes a name resolves it in the same way."""

    # ------------------------------------------------------------------------- reserved names

    @pytest.mark.parametrize("use", _USES)
    def test_latest_is_the_one_written_to_last(self, store: Store, use: str) -> None:
        """In every operation; within a scope, if one is named, whatever characters it has."""
        for scope in ("s", "a:b", "é \0"):
            for _ in range(2):
                last = store.create(scope=scope)
                last.append(Message.user("x"))
            assert store.get(f"@latest:{scope}").id == last.id
        first = store.create(scope="s")
        store.create(scope="t").append(Message.user("x"))
        first.append(Message.user("y"))
        assert _USES[use](store, "@latest") == first.id
        assert _USES[use](store, "@latest:t") is not None
        with pytest.raises(SessionNotFound):
            store.get("@latest:S")

    def test_latest_is_what_latest_gives(self, store: Store) -> None:
        """No delegate and no trashed session; `SessionNotFound` in an empty store."""
        with pytest.raises(SessionNotFound):
            store.get("@latest")
        session = store.create()
        store.create(parent=session, relation="delegate").append(Message.user("x"))
        store.trash(store.create().id)
        latest = store.latest()
        assert latest is not None
        assert store.get("@latest").id == latest.id == session.id

    def test_latest_passes_over_what_cannot_be_read(self, store: Store, session: Session) -> None:
        """The damaged session is skipped, and reported."""
        self.expect_no_damage = False
        other = store.session("other")
        self.spoil_goal(store, other)
        assert store.get("@latest").id == session.id
        assert {found.session_id for found in store.damage} == {other.id}

    @pytest.mark.parametrize("use", _USES)
    def test_pinned_is_the_only_one(self, store: Store, use: str) -> None:
        """`SessionNotFound` if none is pinned; several are candidates."""
        with pytest.raises(SessionNotFound):
            store.get("@pinned")
        one, two = store.create(title="one"), store.create(title="two")
        for session in (one, two):
            session.update(pinned=True)
        for name in ("get", "parent", "trash", "purge"):
            with pytest.raises(AmbiguousRef) as refused:
                _USES[name](store, "@pinned")
            assert {c.id for c in refused.value.candidates} == {one.id, two.id}
        two.update(pinned=False)
        assert _USES[use](store, "@pinned") == one.id

    def test_a_pinned_one_in_the_trash_is_not_meant(self, store: Store) -> None:
        """After `restore` it is found again."""
        session = store.create()
        session.update(pinned=True)
        store.trash(session.id)
        with pytest.raises(SessionNotFound):
            store.get("@pinned")
        store.restore(session.id)
        assert store.get("@pinned").id == session.id

    def test_these_names_mean_the_same_whatever_is_called_so(self, store: Store) -> None:
        """A session with such a key or title does not shadow them; other names may begin with @."""
        named = [store.session(ref, title=ref) for ref in ("@latest", "@pinned", "@latest:s")]
        newest = store.session("@home")
        for ref in ("@latest:s", "@pinned"):
            with pytest.raises(SessionNotFound):
                store.get(ref)
        assert store.get("@latest").id == store.get("@home").id == newest.id
        assert [store.get(s.id).id for s in named] == [s.id for s in named]
        for ref in ("@", "@late", "@pinned:s", "latest"):
            with pytest.raises(SessionNotFound):
                store.get(ref)

    @pytest.mark.parametrize("ref", ["", " ", "\t\n", "-", "@latest:", 5, b"key"])
    def test_not_a_name(self, store: Store, ref: Any) -> None:  # noqa: ANN401
        """`BadRef` in every operation, and nothing is changed; also if a session has this key."""
        store.session("-")
        store.session(" ")
        for use in _USES.values():
            with pytest.raises(BadRef):
                use(store, ref)
        with pytest.raises(BadRef):
            store.restore(ref)
        assert (store.stats().sessions, store.stats().trashed) == (2, 0)

    # ------------------------------------------------------------------------- titles in any case

    @pytest.mark.parametrize(
        ("title", "ref"),
        [
            ("A Parcel", "a parcel"),
            ("A Parcel", "A PARCEL"),
            ("Straße", "STRASSE"),
            ("École", "éCOLE"),
            ("École", "E\u0301cole"),
            ("ΣΊΣΥΦΟΣ", "σίσυφος"),
            ("nul \0 X", "NUL \0 x"),
            ("half \ud800 X", "HALF \ud800 x"),
            ("50% of_it", "50% OF_IT"),
            ("[a-z]*", "[A-Z]*"),
            ("\u212aelvin", "kelvin"),
            ("kelvin", "\u212aELVIN"),
        ],
    )
    def test_a_title_but_for_case(self, store: Store, title: str, ref: str) -> None:
        """By Unicode case folding; wildcards are literal."""
        store.create(title=f"{title} and more")
        store.create(title=f"x{title}")
        session = store.create(title=title)
        assert self.reopen(store).get(ref).id == session.id

    def test_titles_are_alike_as_they_are_folded(self, store: Store) -> None:
        """Every backend finds the same titles as a comparison with all of them."""
        chance = random.Random(5)  # noqa: S311 - not a secret
        words = ["".join(chance.choices(_LETTERS, k=chance.randint(1, 3))) for _ in range(150)]
        made = {store.create(title=word).id: word for word in words}
        for word in words:
            ref = chance.choice([str.upper, str.lower, str.swapcase])(word)
            found = store.backend.read(self.title_query(ref))
            alike = {
                id_ for id_, title in made.items() if normalize_title(title) == normalize_title(ref)
            }
            assert {row.id for row in found} == alike or len(found) == 20 < len(alike)  # noqa: PLR2004

    def title_query(self, title: str) -> Query[list[SessionRow]]:
        """Query the backend protocol, where exact names do not take precedence."""
        return lambda snapshot: snapshot.sessions("title_any_case", title, trashed=False, limit=20)

    def test_an_exact_title_goes_before_one_but_for_case(self, store: Store) -> None:
        """As does every exact name; several matches that ignore case are candidates."""
        made = {title: store.create(title=title) for title in ("word", "Word", "WORD")}
        for title, session in made.items():
            assert store.get(title).id == session.id
        with pytest.raises(AmbiguousRef) as refused:
            store.get("wORD")
        assert {c.id for c in refused.value.candidates} == {s.id for s in made.values()}
        keyed = store.session("wORD")
        assert store.get("wORD").id == keyed.id

    def test_keys_are_never_folded(self, store: Store) -> None:
        """They are compared byte by byte."""
        store.session("Key")
        with pytest.raises(SessionNotFound):
            store.get("key")

    def test_a_title_but_for_case_in_the_trash(self, store: Store) -> None:
        """Only operations on the trash find it; `purge` refuses a name found in and out of it."""
        thrown = store.create(title="A Title")
        store.trash(thrown.id)
        with pytest.raises(SessionNotFound):
            store.get("a title")
        store.create(title="a TITLE")
        with pytest.raises(AmbiguousRef) as refused:
            store.purge("a title")
        assert sorted(c.trashed for c in refused.value.candidates) == [False, True]
        assert store.restore("a title").id == thrown.id

    # --------------------------------------------------------------------------------- candidates

    def test_candidates_are_described(self, store: Store) -> None:
        """Id, key, title or preview, and last write; the newest first, 20 at most."""
        one = store.session("k", title="same")
        two = store.create(title="same")
        one.append(Message.user("the first\nwords"))
        with pytest.raises(AmbiguousRef) as refused:
            store.get("same")
        assert refused.value.candidates == tuple(
            Candidate(
                id=session.id,
                key=session.key,
                title="same",
                preview=preview,
                updated_at=session.info().updated_at,
                trashed=False,
            )
            for session, preview in ((one, "the first words"), (two, None))
        )
        assert all(f"{session.id}" in str(refused.value) for session in (one, two))
        assert "words" not in str(refused.value), "errors carry no text of a conversation"
        for _ in range(30):
            store.create(title="same")
        with pytest.raises(AmbiguousRef, match="and more") as refused:
            store.get("same")
        assert len(refused.value.candidates) == 20  # noqa: PLR2004

    def test_another_tenants_sessions_are_no_candidates(self, store: Store) -> None:
        """They are not found by any name, either."""
        self.need_persistence()
        theirs = self.open(tenant="other")
        theirs.create(title="Same", scope="s").update(pinned=True)
        for ref in ("@latest", "@latest:s", "@pinned", "same", "Same"):
            with pytest.raises(SessionNotFound):
                store.get(ref)
        mine = store.create(title="same")
        assert store.get("SAME").id == store.get("@latest").id == mine.id

    def spoil_goal(self, store: Store, session: Session) -> None:
        """Write what no operation would: a session whose identity cannot be decoded."""

        def operation(tx: Transaction) -> None:
            row = tx.session(number_of(session))
            assert row is not None
            tx.put_session(msgspec.structs.replace(row, goal=b"[1"))

        store.backend.write(operation)
