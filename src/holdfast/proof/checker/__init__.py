"""The history checker: compares what a store acknowledged with what it kept.

The model. Several *workers* (processes or threads) write messages to sessions of one store. Each
records its calls and their results as *events*, one JSON line each, in a file of its own: a write
began (`Invoked`), then it was acknowledged (`Acked`), refused (`Refused`), or its outcome is not
known (`Unknown`, or no end at all because the worker was killed). Reads, takeovers and kills are
events too. After the run, the histories are read from the store, and `check` compares the two.

What may be concluded. A write that was not refused *may* have stored its messages; one that was
acknowledged *must* have; one that was refused must not. A message was stored at some time between
the first invocation of a write with its id and the first event that reports it, an acknowledgement
or a read; so the checker never needs to guess which of several retries stored it. It reports only
what no correct store could have produced, and never raises for what it finds. A log that
contradicts itself (an end without a beginning, a damaged line in the middle of a file) raises
`BadHistory`: then the harness is wrong, not the store.

Heads that move. Every move of a head opens the next branch, and branches only grow, so the branches
of a session, concatenated, are its log: the order in which everything was stored. The append rules
hold for that log whatever moved meanwhile. The branch rules check whether each move, applied to the
state before it, produces the branch that is stored: whether there is a serial order.

Its limits. Times are `time.monotonic_ns()`, comparable between the processes of one Linux host.
An id has one body: a replace that gives it another one is not modelled. Every append rule visits
each event and each message a fixed number of times; the branch rules visit the history of each
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

In a session whose head moves, `recorder.invoked_operation` begins every operation and
`recorder.acked_head` ends it with the head it returned; pass its branches to `check` as `branches`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.proof.checker import append_rules, branch_rules
from holdfast.proof.checker.coverage import coverage
from holdfast.proof.checker.event_log import (
    Acked,
    BadHistory,
    Branch,
    Event,
    Fenced,
    Invoked,
    Killed,
    OperationName,
    Read,
    Recorder,
    Refused,
    Stored,
    TornLine,
    Unknown,
    digest,
    load,
    now,
)
from holdfast.proof.checker.session_log import (
    FinalState,
    SessionLog,
    join_writes,
    session_logs,
    sort_by_type,
)
from holdfast.proof.checker.verdict import Coverage, Finding, Verdict, ViolationKind

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
    "OperationName",
    "Read",
    "Recorder",
    "Refused",
    "Stored",
    "TornLine",
    "Unknown",
    "Verdict",
    "ViolationKind",
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
    """Compare the events of all workers with the final histories, in the order the store returned.

    For a session whose head moved, pass all its `branches`, by number, instead of its history.
    `own` are ids of messages that the store writes by itself (a recovered partial reply): they
    are not INVENTED although no worker wrote them.
    """
    log = sort_by_type(events)
    writes = join_writes(log)
    found = session_logs(log, writes, FinalState(final, branches or {}, frozenset(own)))
    findings = [finding for history in found for finding in _judge(history)]
    findings += branch_rules.fork_findings({history.session: history for history in found})
    return Verdict(tuple(findings), coverage(log, writes, found))


def _judge(history: SessionLog) -> Iterable[Finding]:
    rules = (*append_rules.RULES, *branch_rules.rules(history))
    return (finding for rule in rules for finding in rule(history))
