"""What is stored is data: it is not run, not opened and not fetched, and no name becomes a path."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import Message
from tests.cli.shell import Shell

_GADGETS = [
    {"__reduce__": ["os.system", ["touch PWNED"]], "__class__": "subprocess.Popen"},
    {"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, ["touch PWNED"]]},
    {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "touch PWNED"}},
    {"__type__": "builtins.eval", "value": "__import__('os').system('touch PWNED')"},
    {"$ref": "file:///etc/passwd", "!!python/object/apply:os.system": ["touch PWNED"]},
    "gASVIQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAZ0b3VjaCBQlIWUUpQu",
    "cos\nsystem\n(S'touch PWNED'\ntR.",
    "{{ ''.__class__.__mro__[1].__subclasses__() }} ${jndi:ldap://127.0.0.1:9/a} $(touch PWNED)",
    "\ud800 `touch PWNED` \udfff",
]
_TARGETS = ["file:///etc/shadow", "/etc/shadow", "http://127.0.0.1:9/x", "../../.ssh/id_rsa"]
_DRIVER = """
import json, os, sys
import holdfast
from holdfast import File, Message, Text, ToolCall

given, folder = json.load(sys.stdin), sys.argv[1]

def use(name, values):
    '''Store values wherever there is a place for them, and read them in every way.'''
    with holdfast.open(f"{folder}/{name}.db") as store:
        session = store.create(metadata={"value": values}, title=str(values[0]))
        calls = [ToolCall(f"c{n}", "open", {"path": value}) for n, value in enumerate(values)]
        sent = [
            Message.user([Text(str(value)) for value in values], metadata={"value": values}),
            Message.assistant("I look.", tool_calls=calls),
            *(Message.tool(call.id, str(call.arguments["path"])) for call in calls),
            Message.user([File(str(value), "text/plain", b"small") for value in values]),
        ]
        session.append(*sent)
        assert [m.parts for m in session.messages()][:-1] == [m.parts for m in sent][:-1]
        assert [part.name for part in session.messages()[-1].parts] == [str(v) for v in values]
        assert session.info().metadata == {"value": values}
        assert session.messages()[0].metadata == {"value": values}
        store.sessions(); store.search("look"); store.stats(); store.verify()
        for provider in ("anthropic", "openai", "openai-responses", "gemini"):
            session.window(provider=provider)
        fork = session.fork()
        assert [m.parts for m in fork.messages()] == [m.parts for m in session.messages()]
        store.export(f"{folder}/{name}.jsonl", redact=None)
        store.export(f"{folder}/{name}.redacted.jsonl")
        store.backup(f"{folder}/{name}.copy.db")
    with holdfast.open(f"{folder}/{name}.again.db") as again:
        again.import_(f"{folder}/{name}.jsonl")
        found = next(m for m in again.get(session.id).messages() if m.id == sent[0].id)
        assert found.parts == sent[0].parts

use("warm", ["harmless"])  # What is imported late is imported now.
seen = []
EVENTS = {
    "subprocess", "socket", "pickle", "marshal", "urllib", "webbrowser", "import", "exec",
    "os.exec", "os.system", "os.posix_spawn", "os.fork",
}

def watch(event, arguments):
    if event == "open":
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes)) else folder
        if not os.path.abspath(path).startswith((folder, "/proc/self/mountinfo")):
            seen.append([event, path])
    elif event in EVENTS or event.partition(".")[0] in EVENTS:
        seen.append([event, repr(arguments)])

sys.addaudithook(watch)
use("hostile", given)
found, seen = seen, []
print(json.dumps(found))
"""


def test_no_stored_shape_runs_opens_or_fetches_anything(tmp_path: Path) -> None:
    """Every value comes back equal; no process, import, connection or foreign file is seen."""
    (folder := tmp_path / "stores").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(folder)],
        input=json.dumps([*_GADGETS, *_TARGETS]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == []
    assert [path.name for path in tmp_path.iterdir()] == ["stores"]


# ------------------------------------------------------------------------------------------ names

_NAMES = [
    "../../escaped", "..", ".", "/var/../escaped", "a/../b", "a//b", "a/b", "CON", "a\\b", "C:\\x",
    "a:b", "~", "$HOME", "%2e%2e%2fescaped", "key", "Key", "KEY", "key ", "ke\u0301y", "k\u00e9y",
    "a\nb", "-rf", "--store=x", "'; DROP TABLE sessions; --", "x" * 500, "*", "?", "[a]",
    "e\x1b[2J",
]  # fmt: skip


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_key_is_never_a_path(tmp_path: Path) -> None:
    """Names that differ in one byte are distinct; none creates or finds a file."""
    shell = Shell(tmp_path / "state" / "agent.db")
    with holdfast.open(shell.store) as store:
        for name in _NAMES:
            session = store.session(name, scope=name, agent=name, title=name, cwd=name)
            session.append(Message.user(name, id=name))
        before = _tree(tmp_path)
        for name in _NAMES:
            assert [m.text for m in store.session(name, create=False).messages()] == [name]
            assert [one.key for one in store.sessions(scope=name)] == [name]
            assert [one.key for one in store.sessions(agent=name)] == [name]
            assert [one.key for one in store.sessions(cwd=name)] == [name]
        assert {one.key for one in store.sessions(limit=1000)} == set(_NAMES)
        assert _tree(tmp_path) == before
    for name in ("../../escaped", "a\nb", "-rf", "--store=x"):
        shown = json.loads(shell.ok("show", "--json", "--", name))
        assert shown["session"]["key"] == name
        shell.ok("export", "-o", str(tmp_path / "one.jsonl"), "--force", "--", name)
    left = {str(path) for path in tmp_path.rglob("*escaped*")}
    assert not left
    assert not Path("/escaped").exists()


# ------------------------------------------------------------------------------------ permissions


def test_nobody_else_may_read_what_is_written_under_any_umask(tmp_path: Path) -> None:
    """Store, log, index, exports, archives, backups: 0600 in folders that are 0700."""
    shell = Shell(tmp_path / "state" / "deep" / "agent.db")
    before = os.umask(0)
    try:
        shell.ok("new", "--key", "one")
        shell.ok("append", "one", "a secret")
        shell.ok("export", "-o", str(tmp_path / "all.jsonl"))
        shell.ok("backup", str(tmp_path / "copy.db"))
        shell.ok("trash", "one")
        shell.ok("restore-backup", "--yes", str(tmp_path / "copy.db"))
        shell.ok("search", "secret")
        with holdfast.open(shell.store) as store:
            store.session("two").append(Message.user("open, with its log"))
            store.salvage(tmp_path / "salvaged.db")
            modes = {
                str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
                for path in tmp_path.rglob("*")
            }
    finally:
        os.umask(before)
    folders = {name for name in modes if (tmp_path / name).is_dir()}
    assert {modes[name] for name in folders} == {0o700}
    assert {modes[name] for name in modes.keys() - folders} == {0o600}
    assert {"state/deep/agent.db-wal", "state/deep/agent.db-search", "all.jsonl"} <= modes.keys()


@pytest.mark.parametrize("command", [["export", "-o"], ["backup"]], ids=" ".join)
def test_a_planted_link_is_not_written_through(tmp_path: Path, command: list[str]) -> None:
    shell = Shell(tmp_path / "state" / "agent.db")
    shell.ok("new", "--key", "one")
    victim, link = tmp_path / "victim", tmp_path / "out"
    victim.write_text("mine")
    link.symlink_to(victim)
    shell.run(*command, str(link))
    assert victim.read_text() == "mine"


def test_a_linked_store_is_refused(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "agent.db")
    shell.ok("new", "--key", "one")
    (tmp_path / "link.db").symlink_to(tmp_path / "agent.db")
    ran = shell.run("ls", "--store", str(tmp_path / "link.db"))
    assert ran.code != 0
    assert "link" in ran.err
