"""Many processes at once: nothing lost, doubled, reordered, interleaved, or added up wrongly."""

import fcntl
import time
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Usage
from holdfast.proof import checker
from tests.concurrency.children import Child, Pipe, append, batch, judge
from tests.concurrency.conftest import StartChild
from tests.store_urls import with_options

_WRITERS = 8
_TURNS = 50
_BATCH = 4
_PATIENCE = 50.0


def _append_batches(pipe: Pipe, path: Path, name: str, key: str, count: int) -> None:
    recorder = checker.Recorder(path.parent / f"{name}.jsonl", name)
    with holdfast.open(f"sqlite:///{path}?deadline=60") as store:
        session = store.session(key)
        pipe.say("ready")
        pipe.hear()
        for number in range(count):
            append(recorder, session, batch(f"{name}-{number}", _BATCH))
        pipe.say("done")


def _run_together(children: list[Child]) -> None:
    """Start all children when all are ready, and wait for their end."""
    for each in children:
        assert each.hear() == "ready"
    for each in children:
        each.say("go")
    for each in children:
        assert each.hear() == "done"
        each.join()


def _write_together(path: Path, writers: dict[str, Child]) -> None:
    """Run writers to their end; none can write before all have begun to."""
    for each in writers.values():
        assert each.hear() == "ready"
    with path.with_name(f"{path.name}-lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for each in writers.values():
            each.say("go")
        for name in writers:
            _await_an_event(path.with_name(f"{name}.jsonl"))
    for each in writers.values():
        assert each.hear() == "done"
        each.join()


def _await_an_event(path: Path) -> None:
    """Wait until a worker has recorded that it begins."""
    deadline = time.monotonic() + _PATIENCE
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < deadline, "the worker does nothing"
        time.sleep(0.005)


def _wrote_all_at_once(folder: Path) -> bool:
    """True if at some time every writer had begun and none was done."""
    events = checker.load(sorted(folder.glob("*.jsonl")))
    begun: dict[str, int] = {}
    done: dict[str, int] = {}
    for event in events:
        if isinstance(event, checker.Invoked):
            begun.setdefault(event.worker, event.at)
        if isinstance(event, checker.Acked):
            done[event.worker] = event.at
    return max(begun.values()) < min(done.values())


def _turns_of(messages: list[Message]) -> list[str]:
    """Return the turn of every fourth message; fail if one is interleaved with another."""
    names = [message.id.rpartition(".")[0] for message in messages]
    pieces = [names[at : at + _BATCH] for at in range(0, len(names), _BATCH)]
    assert all(len(piece) == _BATCH and len(set(piece)) == 1 for piece in pieces)
    return [piece[0] for piece in pieces]


def test_eight_processes_on_one_session_lose_and_interleave_nothing(
    tmp_path: Path, child: StartChild
) -> None:
    """50 turns of 4 messages from each of 8 processes: each whole, once, in its writer's order."""
    path = tmp_path / "store.db"
    names = [f"w{number}" for number in range(_WRITERS)]
    _write_together(path, {n: child(_append_batches, path, n, "shared", _TURNS) for n in names})
    with holdfast.open(path) as store:
        session = store.session("shared", create=False)
        verdict = judge(tmp_path, session, happened=["overlaps", "acked"])
        turns = _turns_of(session.messages())
        assert store.verify() == []
    assert verdict.coverage.stored == _WRITERS * _TURNS * _BATCH
    for name in names:
        mine = [turn for turn in turns if turn.startswith(f"{name}-")]
        assert mine == [f"{name}-{number}" for number in range(_TURNS)]
    assert _wrote_all_at_once(tmp_path)


def test_eight_processes_on_sessions_of_their_own_lose_nothing(
    tmp_path: Path, child: StartChild
) -> None:
    """Each history holds all of its writer's turns, and nothing of the others'."""
    path = tmp_path / "store.db"
    names = [f"w{number}" for number in range(_WRITERS)]
    _write_together(path, {n: child(_append_batches, path, n, n, _TURNS) for n in names})
    with holdfast.open(path) as store:
        sessions = [store.session(name, create=False) for name in names]
        judge(tmp_path, *sessions, happened=["acked"])
        for name, session in zip(names, sessions, strict=True):
            expected = [f"{name}-{number}" for number in range(_TURNS)]
            assert _turns_of(session.messages()) == expected
        assert store.verify() == []
    assert _wrote_all_at_once(tmp_path)


@pytest.mark.long
def test_sixteen_processes_with_ten_thousand_turns(tmp_path: Path, child: StartChild) -> None:
    """The same with twice the processes and six times the turns."""
    path = tmp_path / "store.db"
    names = [f"w{number}" for number in range(2 * _WRITERS)]
    _write_together(path, {n: child(_append_batches, path, n, "shared", 625) for n in names})
    with holdfast.open(path) as store:
        session = store.session("shared", create=False)
        judge(tmp_path, session, happened=["overlaps", "acked"])
        assert len(_turns_of(session.messages())) == 10_000
        assert store.verify() == []


# --- opening ------------------------------------------------------------------------------------

_ROUNDS = 6


def _open_new_stores(pipe: Pipe, name: str) -> None:
    for path in iter(pipe.hear, None):
        with holdfast.open(path) as store:
            session = store.session("the one")
            session.append(Message.user("hello", id=name))
            runs = [store.create(scope="agent").id for _ in range(2)]
            pipe.say((session.id, runs))


def test_two_processes_that_make_the_same_store_share_it(tmp_path: Path, child: StartChild) -> None:
    """Six times two processes create the same store: both write to the same one.

    The runs they start in one scope, in the same second, are sessions of their own.
    """
    both = [child(_open_new_stores, name) for name in ("a", "b")]
    for number in range(_ROUNDS):
        path = tmp_path / str(number) / "store.db"
        for each in both:
            each.say(path)
        (one, some), (two, others) = (each.hear() for each in both)
        assert one == two
        with holdfast.open(path) as store:
            assert sorted(m.id for m in store.session("the one").messages()) == ["a", "b"]
            listed = {info.id for info in store.sessions(scope="agent")}
            assert listed == {*some, *others}
            assert len(listed) == 4
            assert store.verify() == []
        left_behind = {p.name for p in path.parent.iterdir() if p.name.endswith(".new")}
        assert left_behind == set()
    for each in both:
        each.say(None)
        each.join()


# --- sums ---------------------------------------------------------------------------------------

_SPENDERS = 4
_SPENT = 20
_MODELS = ("large", "small")
_PRICE = Decimal("0.000123456789")


def _usage(number: int) -> Usage:
    return Usage(input=number, output=2 * number, cache_read=3, cache_write=number % 5, reasoning=1)


def _spend(pipe: Pipe, url: str, name: str) -> None:
    with holdfast.open(url) as store:
        session = store.session("shared")
        pipe.say("ready")
        pipe.hear()
        for number in range(_SPENT):
            usage, cost, model = _usage(number), _PRICE * number, _MODELS[number % 2]
            if number % 4 < 2:
                session.append(Message.assistant("a", model=model, usage=usage, cost=cost))
                continue
            with session.turn(wait=90, model=model, run_id=f"{name}-{number}") as turn:
                turn.assistant("b", usage=usage, cost=cost)
                turn.assistant("c", usage=usage, cost=cost)
        pipe.say("done")


def test_usage_adds_up_exactly_when_four_processes_spend_at_once(
    shared_url: str, child: StartChild
) -> None:
    """Per session, per model and per turn, tokens and money are what was spent, to the last one."""
    names = [f"p{number}" for number in range(_SPENDERS)]
    url = with_options(shared_url, deadline=60)
    _run_together([child(_spend, url, name) for name in names])
    spent = [number for number in range(_SPENT) for _ in range(1 if number % 4 < 2 else 2)]
    with holdfast.open(shared_url) as store:
        session = store.session("shared", create=False)
        report, info = session.usage(), session.info()
        turns = {turn.run_id: turn for turn in session.turns()}
    for index, model in enumerate(_MODELS):
        of_model = next(each for each in report.by_model if each.model == model)
        numbers = [number for number in spent if number % 2 == index] * _SPENDERS
        assert of_model.usage == sum(map(_usage, numbers), Usage())
        assert of_model.cost == sum(_PRICE * number for number in numbers)
    assert report.usage == info.usage == sum(map(_usage, spent * _SPENDERS), Usage())
    assert report.cost == info.cost == sum(_PRICE * number for number in spent * _SPENDERS)
    assert len(report.by_model) == len(_MODELS)
    assert len(turns) == _SPENDERS * _SPENT // 2
    for run_id, turn in turns.items():
        number = int(str(run_id).rpartition("-")[2])
        assert turn.usage == _usage(number) + _usage(number)
        assert turn.cost == _PRICE * number * 2


# --- queued input -------------------------------------------------------------------------------

_ASKERS = 4
_ASKED = 40


def _ask(pipe: Pipe, url: str, name: str) -> None:
    with holdfast.open(url) as store:
        session = store.session("shared")
        pipe.say("ready")
        pipe.hear()
        for number in range(_ASKED):
            if number == _ASKED // 2:
                pipe.say("half")
                pipe.hear()
            question = Message.user(f"question {number}", id=f"{name}-{number:03}")
            session.enqueue(question)
            if number % 3 == 0:
                session.enqueue(question)  # An impatient user sends it again.
        pipe.say("done")


def test_queued_input_of_four_processes_is_taken_once_and_in_order(
    shared_url: str, child: StartChild
) -> None:
    """Input queued while turns take it is neither missed nor taken twice."""
    url = with_options(shared_url, deadline=60)
    askers = [child(_ask, url, f"p{number}") for number in range(_ASKERS)]
    for each in askers:
        each.hear()
    taken: list[str] = []
    takes = 0
    with holdfast.open(url) as store:
        session = store.session("shared")
        # The children continue when the first half was taken: not all can be taken at once.
        for said, share in (("half", _ASKED // 2), ("done", _ASKED)):
            for each in askers:
                each.say("go")
            while len(taken) < _ASKERS * share:
                with session.turn() as turn:
                    found = [message.id for message in turn.take_queued()]
                taken += found
                takes += bool(found)
            for each in askers:
                assert each.hear() == said
        for each in askers:
            each.join()
        with session.turn() as turn:
            assert turn.take_queued() == []
        assert session.queued() == []
        assert [message.id for message in session.messages()] == taken
    assert takes > 1
    assert set(Counter(taken).values()) == {1}
    for number in range(_ASKERS):
        mine = [id_ for id_ in taken if id_.startswith(f"p{number}-")]
        assert len(mine) == _ASKED
        assert all(one < two for one, two in pairwise(mine))
