"""What leaves by an export holds no secret: canaries in every field, searched for everywhere.

Each canary is of another form, as people and tools write them. They are put together from pieces,
so that nothing that looks for leaked keys finds any in this file.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

import holdfast
from holdfast import File, Goal, Message, Raw, Store, Text, Thinking, ToolCall
from holdfast.values import JSON, Provenance
from tests.cli.shell import Shell
from tests.transfer.redact.samples import BASE32, HEX, drawn, pem

_FIELDS: Final = (
    *("title", "key", "scope", "agent", "model", "cwd", "objective", "metadata", "metadata key"),
    *("text", "thinking", "signed thinking", "tool name", "argument", "argument text"),
    *("result", "raw", "provenance", "name", "file name", "queued", "summary", "error", "draft"),
)


def _canary(number: int) -> str:
    """Return a secret and its context, of another form for each number."""
    word = "tidal" + "".join(chr(ord("a") + int(digit)) for digit in f"{number:02}") + "wave"
    forms = (
        "gh" + "p_" + drawn(36, seed=number),
        f"postgres://bob:{word}@db/app",
        f"export DB_PASSWORD={word}",
        f"mysql -u root -p{word} shop",
        f"machine git.test login bob password {word}",
        f"**Password:** {word}7",
        f"db.test:5432:shop:bob:{word}",
        "my" + "AK" + "IA" + drawn(16, BASE32, seed=number),
        "https://a.test/x?X-Amz-Signature=" + drawn(64, HEX, seed=number),
        "root:$" + "6$" + drawn(16, seed=number) + "$" + drawn(86, seed=number),
    )
    return forms[number % len(forms)]


def _secret(canary: str) -> str:
    """Return the part of a canary that nobody may find."""
    for before in ("Signature=", "password ", "Password:** ", "PASSWORD=", "bob:", " -p", "my"):
        if before in canary:
            canary = canary.rpartition(before)[2]
    return canary.partition("@")[0].partition(" ")[0]


CANARIES: Final = {field: _canary(number) for number, field in enumerate(_FIELDS)}


def _fill(store: Store) -> None:
    its = CANARIES
    session = store.session(
        its["key"],
        title=its["title"],
        scope=its["scope"],
        agent=its["agent"],
        model=its["model"],
        cwd=its["cwd"],
        metadata={"note": [its["metadata"]], its["metadata key"]: 1},
    )
    session.update(goal=Goal(its["objective"]))
    session.append(
        Message.user(
            [its["text"], File(its["file name"], "image/png", b"\x89PNG")],
            name=its["name"],
            provenance=Provenance("mail", its["provenance"]),
        ),
        Message.assistant(
            [
                Thinking(its["thinking"]),
                Thinking(its["signed thinking"], "signature"),
                Raw("x", {"y": its["raw"]}),
            ],
            tool_calls=[
                ToolCall("c1", its["tool name"], {"deep": [{"x": its["argument"]}]}),
                ToolCall("c2", "run", json.dumps({"command": its["argument text"]})),
            ],
        ),
        Message.tool("c1", its["result"]),
        Message.tool("c2", "done"),
    )
    session.enqueue(Message.user(its["queued"]))
    session.summarize(its["summary"])
    with suppress(ValueError), session.turn() as turn:
        turn.user("Go on.")
        raise ValueError(its["error"])
    turn = store.create(title="streams").turn().__enter__()
    reply = turn.stream()
    reply.write(its["draft"])
    reply.flush()


@pytest.fixture
def leaky(tmp_path: Path) -> Shell:
    """A store with a canary in every field."""
    shell = Shell(tmp_path / "agent.db")
    with holdfast.open(shell.store) as store:
        _fill(store)
    return shell


def _everything(path: Path) -> str:
    """Return all of an exported file, with the data of its files decoded."""
    text = path.read_text()
    blobs = [json.loads(line).get("data") for line in text.splitlines() if '"blob"' in line]
    return text + "".join(base64.b64decode(data).decode("latin-1") for data in blobs if data)


def _found_in(text: str) -> list[str]:
    return [field for field, canary in CANARIES.items() if _secret(canary) in text]


def test_no_canary_leaves_by_an_export(leaky: Shell, tmp_path: Path) -> None:
    """Not in the file, nor in what the command says; all are in a copy that was asked for."""
    whole = leaky.run("export", "-o", str(tmp_path / "whole.jsonl"), "--no-redact")
    assert whole.code == 0, whole.err
    assert _found_in(_everything(tmp_path / "whole.jsonl")) == list(CANARIES)
    safe = leaky.run("export", "-o", str(tmp_path / "safe.jsonl"))
    assert safe.code == 0, safe.err
    assert _found_in(_everything(tmp_path / "safe.jsonl")) == []
    assert _found_in(safe.out + safe.err) == []


@pytest.mark.parametrize("arguments", [("-o", "-"), ("--review",), ("--review", "--json")])
def test_no_canary_is_printed(leaky: Shell, arguments: tuple[str, ...]) -> None:
    """Neither with the lines, nor in the list of what was found."""
    ran = leaky.run("export", *arguments)
    assert ran.code == 0, ran.err
    assert _found_in(ran.out + ran.err) == []
    assert "redacted: " in ran.out or "replaced" in ran.out


def test_the_canaries_of_an_import_do_not_come_back(leaky: Shell, tmp_path: Path) -> None:
    """A redacted file that was imported has none to export."""
    assert leaky.run("export", "-o", str(tmp_path / "safe.jsonl")).code == 0
    other = Shell(tmp_path / "other.db")
    assert other.run("import", str(tmp_path / "safe.jsonl")).code == 0
    assert other.run("export", "-o", str(tmp_path / "again.jsonl"), "--no-redact").code == 0
    assert _found_in(_everything(tmp_path / "again.jsonl")) == []


# --------------------------------------------------------------------------------------- disguises

_KEY: Final = "gh" + "p_" + drawn(36, seed=99)


_DISGUISED: Final = {
    "two parts": Message.user([f"The key is {_KEY[:20]}", f"{_KEY[20:]} and no other."]),
    "three parts": Message.user([f"The key is {_KEY[:3]}", _KEY[3:8], f"{_KEY[8:]}."]),
    "pieces of a result": Message.tool("c", (Text(f"KEY={_KEY[:30]}"), Text(_KEY[30:]))),
    "zero-width characters": Message.user("\u200b".join(_KEY)),
    "glued": Message.user(f"My{_KEY}"),
    "escaped": Message.user(json.dumps(json.dumps({"key": _KEY})).replace("_", "\\u005f")),
    "JSON in JSON in JSON": Message.assistant(
        tool_calls=[ToolCall("c", "run", json.dumps({"a": json.dumps([_KEY])}))]
    ),
    "Latin-1": Message.user([File("a.txt", "text/plain", f"clé: {_KEY}".encode("latin-1"))]),
    "Latin-1 without a type": Message.user([File("a.txt", None, f"clé: {_KEY}".encode("latin-1"))]),
    "UTF-16": Message.user([File("a.txt", None, f"key: {_KEY}".encode("utf-16"))]),
    "UTF-16 without a mark": Message.user(
        [File("a.txt", None, f"key: {_KEY}".encode("utf-16-be"))]
    ),
    "UTF-8 with a mark": Message.user(
        [File("a.txt", "text/plain", f"key: {_KEY}".encode("utf-8-sig"))]
    ),
    "an unknown type": Message.user(
        [File("a.txt", "application/x-unheard-of", f"key: {_KEY}".encode())]
    ),
    "base64 of a key": Message.user(
        [File("a.yaml", "text/yaml", base64.b64encode(pem().encode()))]
    ),
}


@pytest.mark.parametrize("form", _DISGUISED)
def test_no_disguise_helps_a_secret(form: str, tmp_path: Path) -> None:
    """Cut by parts or invisible characters, glued, escaped, or in another encoding."""
    with holdfast.open(tmp_path / "agent.db") as store:
        store.session("k").append(_DISGUISED[form])
        report = store.export(tmp_path / "safe.jsonl")
    assert report.review is not None
    assert report.review.replaced >= 1
    assert report.review.not_looked_into == 0
    with holdfast.open(tmp_path / "other.db") as other:
        other.import_(tmp_path / "safe.jsonl", trust=True)
        (seen,) = other.session("k").messages()
        said = repr(seen) + "".join(
            repr(other.blob(part.sha256 or "")) for part in seen.parts if isinstance(part, File)
        )
    plain = said.replace("\\x00", "").replace("\\u200b", "")
    for start in range(0, len(_KEY) - 8, 4):
        assert _KEY[start : start + 8] not in plain
    assert base64.b64encode(pem().encode()).decode()[:40] not in plain


def test_the_words_of_a_command_are_read_together(tmp_path: Path) -> None:
    """As models give them to a tool: in a list."""
    arguments: dict[str, JSON] = {"argv": ["sshpass", "-p", "tidal" + "wave", "ssh", "bob@host"]}
    with holdfast.open(tmp_path / "agent.db") as store:
        session = store.session("k")
        session.append(Message.assistant(tool_calls=[ToolCall("c", "run", arguments)]))
        store.export(tmp_path / "safe.jsonl")
    text = (tmp_path / "safe.jsonl").read_text()
    assert "tidal" + "wave" not in text
    assert '["sshpass","-p","[redacted: command password]","ssh","bob@host"]' in text
