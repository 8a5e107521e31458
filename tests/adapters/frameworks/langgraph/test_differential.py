"""Random work on a thread: every checkpoint reads as it does from the saver in memory."""

from __future__ import annotations

import random
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from holdfast import Store
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.frameworks.langgraph.checkpoints import checkpoint, config

NAMESPACES = ("", "", "", "", "sub:1", "sub:2")


def new_message(chance: random.Random, number: int) -> BaseMessage:
    id = chance.choice([f"m{number}", f"m{number}", f"m{number}", None, "same"])
    match chance.randrange(4):
        case 0:
            return HumanMessage(f"question {number}", id=id)
        case 1:
            return ToolMessage(f"result {number}", tool_call_id=f"call{number}", id=id)
        case 2:
            blocks: list[Any] = [{"type": "text", "text": f"block {number}"}, {"type": "odd"}]
            return AIMessage(blocks, id=id)
    call = {"name": "look", "args": {"at": number}, "id": f"call{number}", "type": "tool_call"}
    usage = {"input_tokens": number, "output_tokens": 2, "total_tokens": number + 2}
    return AIMessage("", id=id, tool_calls=[call], usage_metadata=usage)


def changed(chance: random.Random, value: list[Any], number: int) -> list[Any]:
    """Return a list of messages after another step: grown, as a rule."""
    added = [new_message(chance, number * 10 + at) for at in range(chance.randrange(3))]
    match chance.randrange(10):
        case 0 if value:
            at = chance.randrange(len(value))
            edited = value[at].model_copy(update={"content": f"edited {number}"})
            return [*value[:at], edited, *value[at + 1 :], *added]
        case 1 if value:
            at = chance.randrange(len(value))
            return [*value[:at], *value[at + 1 :], *added]
        case 2:
            return value[-3:] + added
        case 3:
            return chance.sample(value, len(value)) + added
        case 4:
            return []
        case 5 if value:  # changed where it is, as a node must not but may
            value[chance.randrange(len(value))].content = f"in place {number}"
            return [*value]
    return [*value, *added]


class Twins:
    """The same steps on two savers; each has its own objects, as from its own graph."""

    def __init__(self, savers: list[BaseCheckpointSaver[str]], seed: int) -> None:
        self.savers = savers
        self.seed = seed
        self.ids: dict[str, list[str]] = {ns: [] for ns in NAMESPACES}

    def step(self, number: int) -> None:
        choice = random.Random(f"{self.seed}/{number}")
        ns = choice.choice(NAMESPACES)
        parent = None
        if self.ids[ns] and choice.random() < 0.15:
            parent = choice.choice(self.ids[ns])
        for saver in self.savers:
            chance = random.Random(f"{self.seed}/{number}/2")
            self._run(saver, chance, ns, parent, number)
        self.ids[ns].append(checkpoint({}, {}, number)["id"])

    def _run(
        self,
        saver: BaseCheckpointSaver[str],
        chance: random.Random,
        ns: str,
        parent: str | None,
        number: int,
    ) -> None:
        base = saver.get_tuple(config(id=parent, ns=ns))
        values: dict[str, Any] = {}
        versions: dict[str, Any] = {}
        if base is not None:
            values = dict(base.checkpoint["channel_values"])
            versions = dict(base.checkpoint["channel_versions"])
        new = {}
        for name in ("messages", "notes", "other"):
            if chance.random() < (0.8 if name == "messages" else 0.3):
                if name == "notes":
                    values[name] = chance.choice([number, {"a": {"b": 2.5}}, b"\x00\xff", None])
                else:
                    values[name] = changed(chance, values.get(name, []), number)
                new[name] = f"{number:032}.0"
        versions |= new
        made = checkpoint(values, versions, number)
        metadata = {"source": "loop", "step": number, "parents": {}}
        at = config(id=None if base is None else base.checkpoint["id"], ns=ns)
        if chance.random() < 0.3:
            saved = config(id=made["id"], ns=ns)
            saver.put_writes(saved, [("early", number)], f"task{number}")
        saved = saver.put(at, made, metadata, new)
        for task in range(chance.randrange(3)):
            writes = [("notes", number), ("messages", new_message(chance, number))]
            special = [("__error__", f"{number}"), ("__interrupt__", [number])]
            chosen = writes if chance.random() < 0.7 else special
            saver.put_writes(saved, chosen, f"task{task}", chance.choice(["", "~a", "~b"]))
            if chance.random() < 0.5:
                saver.put_writes(saved, chosen, f"task{task}", "")


def shown(found: CheckpointTuple | None) -> tuple[object, ...] | None:
    if found is None:
        return None
    return (
        found.config["configurable"]["checkpoint_id"],
        found.config["configurable"]["checkpoint_ns"],
        found.checkpoint,
        found.metadata,
        found.parent_config,
        found.pending_writes,
    )


@pytest.mark.parametrize("seed", range(40))
def test_every_checkpoint_reads_as_from_the_saver_in_memory(store: Store, seed: int) -> None:
    memory, saver = InMemorySaver(), HoldfastSaver(store)
    twins = Twins([memory, saver], seed)
    for number in range(1, 30):
        twins.step(number)
        if number % 7 == 0:
            twins.savers[1] = HoldfastSaver(store)  # a process that remembers nothing
        for ns in dict.fromkeys(NAMESPACES):
            newest = saver.get_tuple(config(ns=ns)), memory.get_tuple(config(ns=ns))
            assert shown(newest[0]) == shown(newest[1])
    for ns, ids in twins.ids.items():
        for id in ids:
            at = config(id=id, ns=ns)
            assert shown(HoldfastSaver(store).get_tuple(at)) == shown(memory.get_tuple(at))
        assert [*map(shown, saver.list(config(ns=ns)))] == [*map(shown, memory.list(config(ns=ns)))]
    assert store.verify() == []
