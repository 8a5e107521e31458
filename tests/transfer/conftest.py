"""A small export with everything in it, and stores to import it into."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import File, Message, Store, ToolCall, Usage
from tests.memory_folders import fast_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory: it survives killed processes, and syncs are free."""
    with fast_folder() as folder:
        yield folder


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    """A session `talk` with two branches, turns, a file and queued input, and a fork of it."""
    with holdfast.open("memory:") as store:
        talk = store.session("talk", title="A talk", metadata={"of": "parcels"})
        with talk.turn(model="m1", run_id="run-1") as turn:
            turn.user("one")
            turn.assistant("two", tool_calls=[ToolCall("c1", "look")], usage=Usage(3, 4))
            turn.tool("c1", "three")
            turn.assistant("four")
        talk.append(Message.user(["five", File(name="f", data=b"file" * 10)]))
        talk.rewind(4)
        talk.append(Message.user("other five"), Message.assistant("six"))
        talk.enqueue("waits")
        fork = talk.fork(4, key="fork")
        fork.append(Message.user("forked"))
        yield store


@pytest.fixture
def exported(source: Store, tmp_path: Path) -> Path:
    """That store, exported to a file."""
    path = tmp_path / "out.jsonl"
    source.export(path, redact=None)
    return path


@pytest.fixture
def target(store_url: str) -> Iterator[Store]:
    """An empty store."""
    with holdfast.open(store_url) as store:
        yield store
