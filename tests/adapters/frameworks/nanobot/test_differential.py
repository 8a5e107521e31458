"""Random programs do the same to our sessions as to those in nanobot's own files."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.adapters.frameworks.nanobot.conftest import Conversation, Manager, NewManager

KEYS = ("cli:a", "cli_a", "web:1")
START = datetime(2026, 5, 3, 12)  # noqa: DTZ001 - nanobot's times are local


class Program:
    """One random sequence of calls; the same seed makes the same one for any manager."""

    def __init__(self, seed: int, new_manager: NewManager) -> None:
        self._random = random.Random(seed)
        self._new_manager = new_manager
        self._manager: Manager = new_manager()
        self._calls = 0
        self._steps = (
            *[self.exchange] * 4,
            *[self.metadata] * 2,
            *[self.restart] * 3,
            self.edit,
            self.remove,
            self.insert,
            self.archive,
            self.summary,
            self.shorten,
            self.clear,
            self.delete,
            self.metadata_alone,
            self.fork,
            self.unsaved,
        )

    def run(self, steps: int) -> list[Any]:
        """Return what each step showed."""
        return [self._step() for _ in range(steps)]

    def _step(self) -> tuple[str, object, list[Any]]:
        self._calls += 1
        session = self._manager.get_or_create(self._random.choice(KEYS))
        if not session.messages:
            session.created_at = self._now()
        step = self._random.choice(self._steps)
        shown = step(session)
        if step not in (self.delete, self.metadata_alone, self.unsaved, self.restart):
            session.updated_at = self._now()
            self._manager.save(session)
        return step.__name__, shown, self._everything()

    def _now(self) -> datetime:
        return START + timedelta(seconds=self._calls)

    def _everything(self) -> list[Any]:
        rows = [
            {name: row[name] for name in ("key", "created_at", "updated_at", "title")}
            for row in self._manager.list_sessions()
        ]
        reader = self._new_manager()
        return [
            sorted(rows, key=lambda row: row["key"]),
            *[self._manager.read_session_file(key) for key in KEYS],
            *[reader.read_session_metadata(key) for key in KEYS],
            *[reader.get_or_create(key).last_archived for key in KEYS],
            *[reader.get_or_create(key).get_history(6) for key in KEYS],
        ]

    def _say(self, session: Conversation, role: str, text: str, **fields: object) -> None:
        session.add_message(role, text, timestamp=self._now().isoformat(), **fields)

    def _index(self, session: Conversation) -> int:
        return self._random.randrange(len(session.messages) + 1)

    def exchange(self, session: Conversation) -> None:
        n = self._calls
        self._say(session, "user", self._random.choice(["go", f"Do {n}."]), media=["/a.png"])
        for number in range(self._random.randrange(3)):
            call = f"call-{n}-{number}"
            function = {"name": "run", "arguments": f'{{"n": {n}}}'}
            calls = [{"id": call, "type": "function", "function": function}]
            self._say(session, "assistant", "", tool_calls=calls, reasoning_content=f"Think {n}.")
            self._say(session, "tool", f"Result {n}.", tool_call_id=call, name="run")
        self._say(session, "assistant", f"Done {n}.", latency_ms=n)

    def metadata(self, session: Conversation) -> None:
        name = self._random.choice(["title", "goal_state", "a", "b"])
        value = self._random.choice(["text", None, 3, {"status": "active", "objective": "x"}])
        session.metadata[name] = value
        session.metadata.pop(self._random.choice(["a", "b", "none"]), None)

    def metadata_alone(self, session: Conversation) -> bool:
        updates = {"a": self._random.choice([1, None]), "c": [self._calls]}
        return bool(self._manager.update_session_metadata(session.key, updates))

    def restart(self, session: Conversation) -> None:
        self._manager.invalidate(session.key)
        self._manager = self._new_manager()

    def edit(self, session: Conversation) -> None:
        if session.messages:
            item = self._random.choice(session.messages)
            item["content"] = f"edited {self._calls}"

    def remove(self, session: Conversation) -> None:
        if session.messages:
            session.messages.pop(self._random.randrange(len(session.messages)))
        session.last_archived = min(session.last_archived, len(session.messages))

    def insert(self, session: Conversation) -> None:
        item = {"role": "user", "content": "in between", "timestamp": self._now().isoformat()}
        session.messages.insert(self._index(session), item)

    def archive(self, session: Conversation) -> None:
        session.last_archived = self._index(session)

    def summary(self, session: Conversation) -> None:
        where = self._index(session)
        session.commit_summary_checkpoint("So far.", insert_at=where, last_active=self._now())
        session.messages[where]["timestamp"] = self._now().isoformat()

    def shorten(self, session: Conversation) -> None:
        first = self._index(session)
        session.messages = session.messages[first:]
        session.last_archived = max(0, session.last_archived - first)

    def clear(self, session: Conversation) -> None:
        session.clear()

    def delete(self, session: Conversation) -> bool:
        return bool(self._manager.delete_session(session.key))

    def fork(self, session: Conversation) -> bool:
        self._manager.delete_session("web:1")
        target = self._manager.fork_session_before_user_index(session.key, "web:1", 1)
        if target is not None:
            target.created_at = target.updated_at = self._now()
            self._manager.save(target)
        return target is not None

    def unsaved(self, session: Conversation) -> None:
        self._say(session, "user", "never saved")
        self._manager.invalidate(session.key)


@pytest.mark.parametrize("seed", range(40))
def test_a_random_program_shows_the_same(seed: int, ours: NewManager, theirs: NewManager) -> None:
    expected = Program(seed, theirs).run(25)
    found = Program(seed, ours).run(25)
    for step, (mine, right) in enumerate(zip(found, expected, strict=True)):
        assert mine == right, step
