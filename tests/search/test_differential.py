"""Search compared with an oracle: on random stores, exactly the right messages are found."""

import math
import random
from collections import Counter, defaultdict

import pytest

import holdfast
from holdfast import Store
from tests.search.corpora import QUERIES, Truth, live

# In the last of those that always run the middle of a lineage is purged; more take long.
_SEEDS = [
    seed if seed in {0, 1, 8} else pytest.param(seed, marks=pytest.mark.long) for seed in range(10)
]


def _check(store: Store, truth: Truth, text: str, *, thinking: bool, all_branches: bool) -> None:
    by_session = truth.expected(text, thinking=thinking, all_branches=all_branches)
    titles = truth.titled(text)
    by_lineage: dict[str, set[str]] = defaultdict(set)
    for session_id, ids in by_session.items():
        by_lineage[truth.lineage(session_id)] |= ids
    wanted = Counter({name: len(ids) for name, ids in by_lineage.items() if ids})
    wanted.update(truth.lineage(session_id) for session_id in titles)

    hits = store.search(text, limit=1000, thinking=thinking, all_branches=all_branches).items
    found = {truth.lineage(hit.session_id): 1 + hit.more for hit in hits}
    assert len(found) == len(hits), text
    assert found == dict(wanted), text
    for hit in hits:
        if hit.message_id is None:
            assert hit.session_id in titles, text
        else:
            assert hit.message_id in by_session[hit.session_id], text


def _check_one_by_one(store: Store, truth: Truth, text: str, *, all_branches: bool) -> None:
    titles = truth.titled(text)
    for session_id, ids in truth.expected(text, all_branches=all_branches).items():
        hits = store.search(text, session=session_id, limit=1000, all_branches=all_branches).items
        found = [hit.message_id for hit in hits if hit.message_id is not None]
        assert sorted(found) == sorted(ids), (text, session_id)
        assert (len(hits) > len(found)) is (session_id in titles), text


def _open(url: str, tenant: str = "default") -> Store:
    return holdfast.open(url, durability="process", tenant=tenant)


@pytest.mark.parametrize("seed", _SEEDS)
def test_what_is_found_is_what_is_there(store_url: str, seed: int) -> None:
    """Also while sessions are written to between searches, so that the index is partial."""
    rnd = random.Random(seed)
    with _open(store_url) as store:
        for round_ in range(4):
            for _ in live(store, rnd, 30):
                pass
            truth = Truth(store)
            for text in rnd.sample(QUERIES, 10) if round_ < 3 else QUERIES:
                _check(
                    store,
                    truth,
                    text,
                    thinking=rnd.random() < 0.5,
                    all_branches=rnd.random() < 0.5,
                )
        for text in rnd.sample(QUERIES, 6):
            _check_one_by_one(store, truth, text, all_branches=rnd.random() < 0.5)
        state = store.index_status().state
        assert state == ("none" if store_url == "memory:" else "ready")


@pytest.mark.parametrize("seed", _SEEDS)
def test_an_index_that_has_half_of_it(
    seed: int, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lacks is scanned: the result is the same wherever indexing stopped."""
    rnd = random.Random(seed)
    with _open(shared_url) as store:
        for _ in live(store, rnd, 80):
            pass
        truth = Truth(store)
        monkeypatch.setattr("holdfast.search.indexer._BATCH_MESSAGES", 7)
        monkeypatch.setattr("holdfast.search.manager._QUICK_CATCH_UP_S", 0.0)
        monkeypatch.setattr("holdfast.search.engine._SCAN_S", math.inf)
        monkeypatch.setattr(
            "holdfast.search.manager.IndexManager._start_background", lambda self: None
        )
        for text in rnd.sample(QUERIES, 12):
            _check(store, truth, text, thinking=False, all_branches=rnd.random() < 0.5)


def test_another_tenant_is_never_found(shared_url: str) -> None:
    """Not by words, not by titles, not in counts; each has an index of its own."""
    with _open(shared_url) as ours, _open(shared_url, tenant="them") as theirs:
        for store, seed in ((ours, 1), (theirs, 2), (ours, 3), (theirs, 4)):
            for _ in live(store, random.Random(seed), 40):
                pass
            truths = (ours, Truth(ours)), (theirs, Truth(theirs))
            for text in QUERIES[::3]:
                for whose, truth in truths:
                    _check(whose, truth, text, thinking=False, all_branches=False)
        assert ours.index_status().path != theirs.index_status().path
