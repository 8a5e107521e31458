"""Processes that move one session's head at once, some of them killed: there is a serial order."""

import time
from pathlib import Path

import pytest

import holdfast
from holdfast.proof import checker
from tests.concurrency.children import Child
from tests.concurrency.conftest import StartChild
from tests.concurrency.head_movers import Where, branches_of, inherit, move
from tests.store_urls import with_options

_PATIENCE = 60.0


@pytest.fixture
def where(shared_url: str, tmp_path: Path) -> Where:
    return Where(with_options(shared_url, deadline=60), tmp_path)


def _judge(where: Where) -> checker.Verdict:
    """Compare all recorded events with all branches of the session and of its forks."""
    with holdfast.open(where.url) as store:
        session = store.session("shared", create=False)
        children = [store.get(link.session_id) for link in session.children()]
        branches = {each.id: branches_of(each) for each in (session, *children)}
        assert store.verify() == []
    events = checker.load(sorted(where.folder.glob("*.jsonl")))
    return checker.check(events, {}, branches=branches)


def _wait_for_lines(path: Path, count: int) -> None:
    """Wait until a worker has recorded this many events."""
    deadline = time.monotonic() + _PATIENCE
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "the worker does nothing"
        time.sleep(0.01)


def _begin_together(children: list[Child]) -> None:
    for each in children:
        assert each.hear() == "ready"
    for each in children:
        each.say("go")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_what_several_processes_do_to_one_head_has_a_serial_order(
    where: Where, child: StartChild, seed: int
) -> None:
    """Appends, undos, redos, rewinds, replaces, summaries and forks, with and without `expect`."""
    workers = [child(move, where, f"w{n}", 10 * seed + n, 100) for n in range(4)]
    _begin_together(workers)
    for each in workers:
        assert each.hear() == "done"
        each.join()
    verdict = _judge(where)
    verdict.require(["overlaps", "retries", "moves", "branches", "refused", "reads"])
    assert verdict.coverage.moves > 60


def test_killed_processes_leave_a_serial_order(where: Where, child: StartChild) -> None:
    """Two are killed during their operations; others retry their last writes."""
    harness = checker.Recorder(where.folder / "harness.jsonl", "harness")
    victims = {f"v{n}": child(move, where, f"v{n}", 100 + n, 0) for n in range(2)}
    workers = [child(move, where, f"w{n}", 200 + n, 60) for n in range(2)]
    _begin_together([*victims.values(), *workers])
    successors = []
    for name, victim in victims.items():
        _wait_for_lines(where.folder / f"{name}.jsonl", 60)
        victim.kill()
        harness.killed(name)
        successors.append(child(inherit, where, f"successor of {name}", name, 30))
    for each in [*workers, *successors]:
        assert each.hear() == "done"
        each.join()
    harness.close()
    verdict = _judge(where)
    verdict.require(["kills", "overlaps", "retries", "moves", "branches"])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 18))
def test_many_processes_for_a_long_time(where: Where, child: StartChild, seed: int) -> None:
    """The same with eight of them, and more to do."""
    workers = [child(move, where, f"w{n}", 10 * seed + n, 200) for n in range(8)]
    _begin_together(workers)
    for each in workers:
        assert each.hear() == "done"
        each.join()
    _judge(where).require(["overlaps", "retries", "moves", "branches"])
