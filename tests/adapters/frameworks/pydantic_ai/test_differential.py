"""The store does what the framework's own in-memory store does: 200 random sequences of calls.

Each sequence runs against both. Ids and revisions are made anew by each of them, so they are
compared by where they first occurred.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RequestUsage, RunUsage

import holdfast
from holdfast.adapters.pydantic_ai import HoldfastConversationStore

SEQUENCES = 200
STEPS = 14
IDS = ("a", "a/b", "a_b", "A", "lone \ud800", "nul \0")
SCOPES = (None, None, "user-1", "user-2")


class World:
    """A store, the conversations that its user holds, and the names of what it made."""

    def __init__(self, store: ConversationStore) -> None:
        self.store = store
        self.held: list[Conversation] = []
        self.entries: list[str] = []
        self._names: dict[str, int] = {}

    def name(self, made: str | None) -> int | None:
        return None if made is None else self._names.setdefault(made, len(self._names))

    def shown(self, result: object) -> object:
        """Return a result in a form that is equal for both stores."""
        match result:
            case Conversation():
                return (
                    ModelMessagesTypeAdapter.dump_python(result.messages, mode="json"),
                    result.usage,
                    result.conversation_id,
                    result.deferred_tool_requests,
                    self.name(result.revision),
                    result.new_message_index,
                )
            case ConversationRecord():
                known = dataclasses.asdict(result)
                for field in ("head_id", "forked_at", "revision"):
                    known[field] = self.name(known[field])
                known["branches"] = [self.name(tip) for tip in result.branches]
                del known["updated_at"]
                return known
            case ConversationEntry():
                return self.name(result.id), self.name(result.parent_id), result.message
            case list():
                return [self.shown(item) for item in result]
        return result


async def outcome(world: World, call: Callable[[World], Awaitable[object]]) -> object:
    try:
        return world.shown(await call(world))
    except ConversationConflict as error:
        return "conflict", error.conversation_id
    except UserError:
        return "refused"
    except LookupError:
        return "not there"


# ---------------------------------------------------------------------------------- what is said


class Speaker:
    """Makes messages, the same for the same seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def says(self, most: int = 4) -> list[ModelMessage]:
        made = [m for _ in range(self._rng.randint(0, most)) for m in self._exchange()]
        return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(made))

    def _exchange(self) -> Iterator[ModelMessage]:
        self._count += 1
        self._now += timedelta(seconds=1)
        text, call, now = f"text {self._rng.randint(0, 3)}", f"call-{self._count}", self._now
        user = UserPromptPart(text, timestamp=now)
        match self._rng.randint(0, 4):
            case 0:
                yield ModelRequest([SystemPromptPart("rules", timestamp=now), user], timestamp=now)
            case 1:
                yield ModelRequest([user], instructions="be short", run_id="run-1")
                yield ModelResponse([TextPart(text)], model_name="m", timestamp=now)
            case 2:
                yield ModelResponse(
                    [ThinkingPart("hm"), ToolCallPart("look", {"at": text}, call)],
                    usage=RequestUsage(input_tokens=3, output_tokens=5),
                    timestamp=now,
                )
                returned = ToolReturnPart("look", {"seen": [1, None]}, call, timestamp=now)
                yield ModelRequest([returned, user])
            case 3:
                file = BinaryContent(bytes([self._count % 256] * 9), media_type="image/png")
                parts = [text, file, ImageUrl("https://example.org/a.png")]
                yield ModelRequest([UserPromptPart(parts, timestamp=now)])
            case _:
                yield ModelResponse([TextPart(text)], state="interrupted", timestamp=now)


# ---------------------------------------------------------------------------------- what is done


class Steps:
    """Draws calls; each is made in both worlds."""

    def __init__(self, rng: random.Random, speaker: Speaker) -> None:
        self._rng = rng
        self._speaker = speaker

    def draw(self, held: int, entries: int) -> Callable[[World], Awaitable[object]]:
        kinds = [self._begin, self._load, self._branch, self._fork, self._look, self._drop]
        if held:
            kinds += [self._go_on, self._go_on, self._go_on, self._rewrite]
        return self._rng.choice(kinds)(held, entries)

    def _scope(self) -> str | None:
        return self._rng.choice(SCOPES)

    def _begin(self, held: int, entries: int) -> Callable[[World], Awaitable[object]]:
        id, scope, said = self._rng.choice(IDS), self._scope(), self._speaker.says()

        async def call(world: World) -> object:
            new = Conversation(conversation_id=id, messages=list(said))
            world.held.append(new)
            return await saved(world, new, scope)

        return call

    def _load(self, held: int, entries: int) -> Callable[[World], Awaitable[object]]:
        id, scope = self._rng.choice(IDS), self._scope()
        limit = self._rng.choice([None, None, 0, 1, 2, 3, -1])

        async def call(world: World) -> object:
            found = await world.store.load(id, scope=scope, limit=limit)
            if found is not None:
                world.held.append(found)
            return found

        return call

    def _go_on(self, held: int, entries: int) -> Callable[[World], Awaitable[object]]:
        at, scope, said = self._rng.randrange(held), self._scope(), self._speaker.says()
        waits = self._rng.random() < 0.2
        usage = self._rng.randint(0, 9)

        async def call(world: World) -> object:
            conversation = world.held[at]
            conversation.messages.extend(said)
            conversation.usage = conversation.usage + RunUsage(requests=1, input_tokens=usage)
            parts = [ToolCallPart("ask", {"n": usage}, f"ask-{usage}")]
            requests = DeferredToolRequests(approvals=parts, metadata={f"ask-{usage}": {"why": 1}})
            conversation.deferred_tool_requests = requests if waits else None
            return await saved(world, conversation, scope if usage else None)

        return call

    def _rewrite(self, held: int, entries: int) -> Callable[[World], Awaitable[object]]:
        at, cut, said = self._rng.randrange(held), self._rng.random(), self._speaker.says()
        forgets = self._rng.random() < 0.5

        async def call(world: World) -> object:
            conversation = world.held[at]
            keep = int(cut * len(conversation.messages))
            conversation.messages[keep:] = said
            if forgets:
                conversation.new_message_index = None
            return await saved(world, conversation, None)

        return call

    def _from(self, entries: int) -> tuple[int | None, int | None]:
        """Return how many messages to keep, and from which entry, at least one of them None."""
        if entries and self._rng.random() < 0.5:
            return None, self._rng.randrange(entries)
        return self._rng.choice([None, 0, 1, 2, 3, 5, -1]), None

    def _branch(self, held: int, entries: int) -> Callable[[World], Awaitable[object]]:
        id, scope = self._rng.choice(IDS), self._scope()
        at, entry = self._from(entries)
        is_stale = self._rng.random() < 0.1

        async def call(world: World) -> object:
            record = await world.store.read_record(id)
            revision = None if record is None or is_stale else record.revision
            found = await world.store.branch(
                id,
                at=at,
                from_entry=None if entry is None else world.entries[entry],
                expected_revision=revision,
                scope=scope,
            )
            world.held.append(found)
            return found

        return call

    def _fork(self, held: int, entries: int) -> Callable[[World], Awaitable[object]]:
        id, new, scope = self._rng.choice(IDS), self._rng.choice(IDS), self._scope()
        source_scope = self._scope()
        at, entry = self._from(entries)

        async def call(world: World) -> object:
            found = await world.store.fork(
                id,
                at=at,
                from_entry=None if entry is None else world.entries[entry],
                new_conversation_id=new,
                scope=scope,
                source_scope=source_scope,
            )
            world.held.append(found)
            return found

        return call

    def _drop(self, held: int, entries: int) -> Callable[[World], Awaitable[object]]:
        id, scope = self._rng.choice(IDS), self._scope()
        return lambda world: world.store.delete(id, scope=scope)

    def _look(self, held: int, entries: int) -> Callable[[World], Awaitable[object]]:
        id, scope = self._rng.choice(IDS), self._scope()
        limit = self._rng.choice([None, 0, 1, 2, -1])
        entry = self._rng.randrange(entries) if entries and self._rng.random() < 0.5 else None

        async def call(world: World) -> object:
            if entry is not None:
                return await world.store.read_entry(world.entries[entry])
            return [
                await world.store.load_entries(id, scope=scope),
                await world.store.list_conversations(scope=scope, limit=limit),
            ]

        return call


async def saved(world: World, conversation: Conversation, scope: str | None) -> object:
    stored = await world.store.save(conversation, scope=scope)
    world.entries.extend(entry.id for entry in stored)
    return [stored, conversation]


async def everything(world: World) -> object:
    """Return all that the store has."""
    found: list[object] = [await world.store.list_conversations()]
    for id in IDS:
        found.append(await world.store.load(id))
        found.append(await world.store.load_entries(id))
        found.append(await world.store.load_entries(id, limit=2))
    return found


@pytest.mark.parametrize("first", range(0, SEQUENCES, 20))
async def test_random_sequences_end_as_in_the_frameworks_own_store(first: int) -> None:
    kinds: set[str] = set()
    for seed in range(first, first + 20):
        rng = random.Random(seed)
        with holdfast.open("memory:") as store:
            theirs = World(InMemoryConversationStore())
            ours = World(HoldfastConversationStore(store))
            steps = Steps(rng, Speaker(rng))
            for step in range(STEPS):
                call = steps.draw(len(theirs.held), len(theirs.entries))
                expected = await outcome(theirs, call)
                where = f"seed {seed}, step {step}: {call.__qualname__}"
                assert await outcome(ours, call) == expected, where
                kinds.add(call.__qualname__)
            assert await outcome(ours, everything) == await outcome(theirs, everything), seed
    assert len(kinds) >= 8  # Every kind of step was taken.
