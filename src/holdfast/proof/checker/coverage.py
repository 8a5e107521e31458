"""Coverage: how much activity a run recorded."""

from collections.abc import Mapping

from holdfast.proof.checker.event_log import APPEND_OPERATIONS, Acked
from holdfast.proof.checker.session_log import EventsByType, SessionLog, WriteAttempt
from holdfast.proof.checker.verdict import Coverage


def coverage(
    log: EventsByType, writes: list[WriteAttempt], histories: list[SessionLog]
) -> Coverage:
    """Count the activity of a run."""
    killed = {kill.worker: kill.at for kill in log.kills}
    writers = {write.invoked.worker for write in writes}
    acks = [end for end in log.ends if isinstance(end, Acked)]
    refused = sum(write.refused for write in writes)
    return Coverage(
        workers=len(writers | {read.worker for read in log.reads}),
        sessions=len(histories),
        writes=len(writes),
        acked=len(acks),
        refused=refused,
        unknown=len(writes) - len(acks) - refused,
        reads=len(log.reads),
        retries=sum(_retries(history.writes) for history in histories),
        duplicates=sum(ack.duplicate for ack in acks),
        overlaps=sum(_overlaps(history.writes, killed) for history in histories),
        kills=len(writers.intersection(killed)),
        takeovers=len(log.fences),
        torn_lines=len(log.torn),
        stored=sum(len(history.stored) for history in histories),
        moves=sum(
            write.invoked.operation not in APPEND_OPERATIONS and isinstance(write.end, Acked)
            for write in writes
        ),
        branches=sum(len(history.branches) - 1 for history in histories if history.branches),
    )


def _retries(writes: list[WriteAttempt]) -> int:
    """Count the writes that include an id which an earlier write may have stored."""
    seen: set[str] = set()
    count = 0
    for write in sorted(writes, key=lambda write: write.invoked.at):
        if not write.refused:
            count += not seen.isdisjoint(write.invoked.ids)
            seen.update(write.invoked.ids)
    return count


def _overlaps(writes: list[WriteAttempt], killed: Mapping[str, int]) -> int:
    """Count the writes that began while a write of another worker was in progress."""
    count = 0
    latest, runner_up = (-1, ""), (-1, "")  # latest ends, of two different workers
    for write in sorted(writes, key=lambda write: write.invoked.at):
        worker = write.invoked.worker
        rival = runner_up if latest[1] == worker else latest
        count += write.invoked.at < rival[0]
        end = (_end(write, killed), worker)
        if latest[1] == worker:
            latest = max(latest, end)
        elif end > latest:
            latest, runner_up = end, latest
        else:
            runner_up = max(runner_up, end)
    return count


def _end(write: WriteAttempt, killed: Mapping[str, int]) -> int:
    if write.end is not None:
        return write.end.at
    return killed.get(write.invoked.worker, write.invoked.at)
