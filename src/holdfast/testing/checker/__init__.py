"""The history checker: compares what a store acknowledged with what it kept.

The model. Several *workers* (processes or threads) write messages to sessions of one store. Each
records what it asked and what it was told as *events*, one JSON line each, in a file of its own:
a write began (`Invoked`), then it was acknowledged (`Acked`), refused (`Refused`), or its outcome
is not known (`Unknown`, or no end at all because the worker was killed). Reads, takeovers and
kills are events too. When all is over, the histories are read from the store, and `check`
compares the two.

What may be concluded. A write that was not refused *may* have stored its messages; one that was
acknowledged *must* have; one that was refused must not. A message was placed at some moment
between the first time anybody began to write it and the first time anybody was told of it, by an
acknowledgement or by a read; so the checker never needs to guess who of several retries stored
it. It reports only what no legal store could have shown, and it never raises for what it finds.
A record that makes no sense in itself (an end without a beginning, a damaged line in the middle
of a file) is `BadHistory`: then the harness is wrong, not the store.

Heads that move. Every movement opens the next branch, and branches only grow, so the branches of a
session, one behind the other, are its log: the order in which everything was stored. The rules of
growth hold for that log whatever moved meanwhile. Those of movement ask whether each movement,
applied to the state before it, gives the branch that is there: whether there is a serial order.

Its limits. Times are `time.monotonic_ns()`, comparable between the processes of one Linux host.
An id has one body: a replace that gives it another one is not modelled. Every rule of growth visits
each event and each message a fixed number of times; those of movement visit the history of each
branch.

    recorder = Recorder(directory / "w1.jsonl", "w1")
    write = recorder.invoked("s", ids=["a", "b"], digests=[digest("hi"), digest("ho")])
    try:
        head = append(...)
    except Conflict as error:
        recorder.refused(write, type(error).__name__)
    except OutcomeUnknown:
        recorder.unknown(write)
    else:
        recorder.acked(write, last=head.seq)

    check(load(directory.glob("*.jsonl")), {"s": [Stored("a", 1, "..."), ...]}).require()

In a session whose head moves, `recorder.moving` begins every verb and `recorder.moved` ends it with
the head that was told; its branches are given to `check` as such.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.testing.checker import growing, moving
from holdfast.testing.checker.counting import coverage
from holdfast.testing.checker.events import (
    Acked,
    BadHistory,
    Branch,
    Event,
    Fenced,
    Invoked,
    Killed,
    Read,
    Recorder,
    Refused,
    Stored,
    TornLine,
    Unknown,
    Verb,
    digest,
    load,
    now,
)
from holdfast.testing.checker.histories import History, Kept, histories, join, sort_by_type
from holdfast.testing.checker.verdict import Coverage, Finding, Kind, Verdict

__all__ = [
    "Acked",
    "BadHistory",
    "Branch",
    "Coverage",
    "Event",
    "Fenced",
    "Finding",
    "Invoked",
    "Killed",
    "Kind",
    "Read",
    "Recorder",
    "Refused",
    "Stored",
    "TornLine",
    "Unknown",
    "Verb",
    "Verdict",
    "check",
    "digest",
    "load",
    "now",
]


def check(
    events: Iterable[Event],
    final: Mapping[str, Sequence[Stored]],
    *,
    branches: Mapping[str, Sequence[Branch]] | None = None,
    own: Collection[str] = (),
) -> Verdict:
    """Compare the events of all workers with the final histories, in the order the store gave.

    Of a session whose head moved, all `branches` are given, by number, instead of its history.
    `own` are ids of messages which the store writes by itself (a recovered partial reply): they
    are not INVENTED though no worker wrote them.
    """
    log = sort_by_type(events)
    writes = join(log)
    found = histories(log, writes, Kept(final, branches or {}, frozenset(own)))
    findings = [finding for history in found for finding in _judge(history)]
    findings += moving.forks({history.session: history for history in found})
    return Verdict(tuple(findings), coverage(log, writes, found))


def _judge(history: History) -> Iterable[Finding]:
    rules = (*growing.RULES, *moving.rules(history))
    return (finding for rule in rules for finding in rule(history))
