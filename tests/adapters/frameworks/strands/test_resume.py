"""What other processes wrote is there: after a crash, and while several write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from strands.types.session import SessionMessage

import holdfast
from holdfast.adapters.strands import HoldfastSessionRepository
from holdfast.testing import legality
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply

SCRIPT = Path(__file__).with_name("agent_process.py")


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_an_agent_killed_inside_a_tool_is_resumed_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    killed = start("charge", path)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "charging 5\n"
    killed.kill()
    killed.wait()
    killed.stdout.close()

    with holdfast.open(path) as store:
        left = store.session("till").messages()
        assert [(m.role, m.text) for m in left] == [
            ("user", "Charge 5 cents"),
            ("assistant", "One moment."),
        ]
        assert [call.id for call in left[1].tool_calls] == ["c-1"]

    resumed = start("resume", path)
    output, _ = resumed.communicate()
    assert resumed.returncode == 0
    shown = json.loads(output)

    with holdfast.open(path) as store:
        session = store.session("till")
        history = session.messages()
        assert [m.id for m in history[:2]] == [m.id for m in left]
        assert len({m.id for m in history}) == len(history) == len(shown)
        assert [m["tracking_id"] for m in shown] == [m.id for m in history]
        (result,) = history[2].tool_results
        assert (result.call_id, result.error) == ("c-1", True)
        assert history[-1].text == "I do not know whether it was charged."
        for provider in legality.PROVIDERS:
            window = session.window(provider=provider)
            assert legality.problems(provider, window.messages, window.system) == []


def test_processes_that_write_at_once_lose_and_mix_up_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with holdfast.open(path) as store:
        store.session("till").append(holdfast.Message.user("first"))
    names, count = ("one", "two", "three", "four"), 15
    writers = [start("write", path, name, str(count)) for name in names]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0

    with holdfast.open(path) as store:
        texts = [message.text for message in store.session("till").messages()]
    assert len(texts) == 1 + len(names) * count
    for name in names:
        mine = [text for text in texts if text.split()[0] == name]
        assert mine == [f"{name} {number}" for number in range(count)]


def test_half_of_a_reply_that_a_crash_cut_off_stays_before_what_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    crash_in_a_reply(path, "s")
    with holdfast.open(path, durability="process") as store:
        given = SessionMessage.from_message({"role": "user", "content": [{"text": "And?"}]}, 1)
        HoldfastSessionRepository(store).create_message("s", "a", given)
        store.session("s").recover()
        texts = [message.text for message in store.session("s").messages()]
    assert (texts, given.message_id) == ([ASKED, HALF, "And?"], 2)
