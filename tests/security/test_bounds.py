"""Input without bound: refused with a typed error that names the limit, or handled in linear time.

Where a test says that something ends, it took minutes, hours or all memory before.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import File, Message, Raw, Text, ToolCall, ToolResult
from holdfast.errors import BadMessage, BadQuery, StoreUnavailable, TooLarge
from holdfast.search.document import Document
from holdfast.search.match import matches
from holdfast.search.query import parse
from holdfast.values import Part, Provider
from holdfast.windows.pairing import group_messages
from tests.cli.shell import Shell
from tests.search.material import NOW
from tests.store_urls import KINDS, Kind, place
from tests.transfer.edits import change

PROVIDERS: tuple[Provider, ...] = ("openai", "openai-responses", "anthropic", "gemini")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home" / "agent.db")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Store]:
    kind: Kind = request.param
    with place(kind, tmp_path) as url, holdfast.open(url) as opened:
        yield opened


# ----------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "command",
    ["ls --store {}", "append --store {} k x", "backup {}", "restore-backup -y {}", "copy {} to.db",
     "copy {store} {}", "doctor --fix --store {}", "prove --dir {}"],
)  # fmt: skip
def test_a_path_that_is_not_utf8_is_refused_before_anything_is_made(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    """SQLite takes no other: it was a traceback, and left files behind."""
    shell.ok("append", "k", "Hello")
    path = tmp_path / "b\udcff.db"
    ran = shell.run_anew(*(w.format(path, store=shell.store) for w in command.split()))
    assert "is not valid UTF-8" in ran.out + ran.err
    assert ran.code in {1, 5}
    assert [found for found in tmp_path.iterdir() if found.name != shell.store.parent.name] == []


def test_a_store_is_not_salvaged_to_a_path_that_is_not_utf8(shell: Shell) -> None:
    shell.ok("append", "k", "Hello")
    with holdfast.open(shell.store) as store, pytest.raises(StoreUnavailable, match="UTF-8"):
        store.salvage(shell.store.with_name("b\udcff.db"))


# -------------------------------------------------------------------------------- standard input


@pytest.mark.parametrize("command", [("append", "k"), ("summarize", "k")])
def test_endless_input_is_refused_and_nothing_is_stored(
    shell: Shell, command: tuple[str, ...]
) -> None:
    """The command stops reading at the limit: `yes` never ends by itself."""
    shell.ok("append", "k", "Hello")
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        ran = subprocess.run(
            [*shell.command, *command, "--json"],
            env=shell.environment,
            stdin=endless.stdout,
            capture_output=True,
            timeout=60,
            check=False,
        )
        endless.kill()
    problem = json.loads(ran.stderr)
    assert (ran.returncode, problem["error"]) == (2, "TooLarge")
    assert "over the limit of 268,435,456 bytes; nothing was stored" in problem["message"]
    assert len(shell.json("show", "k")["messages"]) == 1


# ----------------------------------------------------------------------------------------- search


@pytest.mark.parametrize(
    ("query", "limit"),
    [
        ("a " * 50_000, "10,000"),
        (" ".join(f"{n:x}" for n in range(2_001)), "2,000"),
        (" ".join(f"{n:x}*" for n in range(2_001)), "2,000"),
        ('"' + "a " * 2_001 + '"', "2,000"),
        ("\u5305" * 2_001, "2,000"),
    ],
    ids=["long", "words", "prefixes", "phrase", "chinese"],
)
def test_a_query_without_bound_is_refused(store: holdfast.Store, query: str, limit: str) -> None:
    store.session("k").append(Message.user("a word"))
    with pytest.raises(BadQuery, match=f"over the limit of {limit}"):
        store.search(query)


def test_the_command_names_the_limit_of_a_query(shell: Shell) -> None:
    shell.ok("append", "k", "Hello")
    ran = shell.run("search", "--json", "--", "word " * 20_000)
    assert ran.code == 2
    assert json.loads(ran.err)["error"] == "BadQuery"
    assert "over the limit of 10,000" in json.loads(ran.err)["message"]


def test_a_query_of_many_common_words_ends(store: holdfast.Store) -> None:
    text = " ".join(f"w{n}" for n in range(256))
    store.session("k").append(Message.user(f"{text} " * 20), Message.user("a " * 50_000))
    assert len(store.search(text)) == 1
    assert len(store.search('"' + "a " * 256 + '"')) == 1


def test_accents_out_of_order_end() -> None:
    """To sort a run of them takes quadratic time: hours for this text."""
    text = "\u0301\u0316" * 1_000_000
    assert matches(parse("==", now=NOW), Document(text)) is None
    assert matches(parse("==", now=NOW), Document(f"{text} ==")) is not None


# -------------------------------------------------------------------------------- parts and files


@pytest.mark.parametrize(
    "parts",
    [
        tuple(Text(f"{n}") for n in range(10_001)),
        tuple(ToolCall(f"c{n}", "read", {}) for n in range(10_001)),
        (ToolResult("c", tuple(Text("x") for _ in range(10_000))),),
        tuple(Raw("x", n) for n in range(10_001)),
    ],
    ids=["texts", "calls", "a result", "raw"],
)
def test_a_message_of_too_many_parts_is_refused(
    store: holdfast.Store, parts: tuple[Part, ...]
) -> None:
    session = store.session("k")
    with pytest.raises(TooLarge, match="10001 parts, over the limit of 10000; nothing was stored"):
        session.append(Message(role="assistant", parts=parts))
    with pytest.raises(TooLarge):
        session.enqueue(Message(role="user", parts=parts))
    assert session.head().seq == 0


def test_a_reply_of_too_many_parts_is_refused_and_what_it_has_is_kept() -> None:
    with holdfast.open("memory:") as store:
        session = store.session("k")
        with session.turn() as turn, turn.stream() as reply:
            for n in range(10_000):
                reply.raw(Raw("x", n))
            with pytest.raises(TooLarge, match="10000 parts; what was written before is kept"):
                reply.raw(Raw("x", "more"))
        assert len(session.messages()[0].parts) == 10_000


def test_an_import_has_the_limits_of_an_append(tmp_path: Path) -> None:
    """The line becomes a placeholder, and is reported; the rest is imported."""
    file = tmp_path / "sessions.jsonl"
    with holdfast.open(f"sqlite:///{tmp_path}/a.db") as store:
        texts = Message(role="user", parts=(Text("x"),))
        sized = Message(role="user", parts=(File(data=b"abc"),))
        store.session("k").append(texts, sized, Message.user("whole"))
        store.export(file, redact=None)
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    first, second = (
        at for at, line in enumerate(lines) if line.get("seq") in (1, 2) and "parts" in line
    )
    change(file, first, lambda line: line.update(parts=line["parts"] * 10_001))
    change(file, second, lambda line: line["parts"][0].update(size=4))
    with holdfast.open(f"sqlite:///{tmp_path}/b.db") as store:
        report = store.import_(file)
        statuses = [message.status for message in store.get("@latest").messages()]
    assert statuses == ["damaged", "damaged", "complete"]
    told = [damage.what for damage in report.damage]
    assert any(f"line {first + 1} cannot be read; a placeholder" in what for what in told)
    assert any(f"line {second + 1} cannot be read; a placeholder" in what for what in told)


def test_a_file_that_states_another_size_is_refused(store: holdfast.Store) -> None:
    session = store.session("k")
    session.append(Message(role="user", parts=(File(name="a", data=b"abc"),)))
    (stored,) = session.messages()[0].parts
    assert isinstance(stored, File)
    lies: list[tuple[Part, ...]] = [
        (File(data=b"abc", size=0),),
        (File(data=b"abc", size=4),),
        (File(sha256=stored.sha256, size=1 << 40),),
        (File(data=b"abc"), File(sha256=stored.sha256, size=4)),
        (ToolResult("c", (File(sha256=stored.sha256, size=4),)),),
    ]
    for parts in lies:
        with pytest.raises(BadMessage, match="a file of 3 bytes is said to have"):
            session.append(Message(role="user", parts=parts))
    session.append(Message(role="user", parts=(File(sha256=stored.sha256, size=3),)))
    assert session.head().seq == 2


@pytest.mark.parametrize("command", ["show", "window", "log"])
def test_a_terminal_shows_some_hundred_parts_of_a_message(shell: Shell, command: str) -> None:
    """Each line takes a millisecond to draw there; the command says how many more there are."""
    calls = tuple(ToolCall(f"c{n}", "read", {"n": n}) for n in range(5_000))
    with holdfast.open(shell.store) as store:
        store.session("k").append(Message.user("go"), Message(role="assistant", parts=calls))
    shell.environment["FORCE_COLOR"] = "1"
    out = shell.ok(command, "k")
    assert len(out.splitlines()) < 1_100
    assert "4,500 more parts; --json has them" in out


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", ["calls", "texts"])
def test_a_window_of_many_messages_in_a_row_ends(provider: Provider, kind: str) -> None:
    """They are merged: a new tuple for each took quadratic time."""
    parts = [ToolCall(f"c{n}", "t") if kind == "calls" else Text("x") for n in range(9_000)]
    with holdfast.open("memory:") as store:
        session = store.session("k")
        session.append(
            Message.user("go"), *(Message(role="assistant", parts=(part,)) for part in parts)
        )
        assert session.window(provider=provider).messages


def test_calls_of_many_messages_are_joined_once() -> None:
    """Their parts are put together at the end: the first message has its own until then."""
    rows = [Message(role="assistant", parts=(ToolCall(f"c{n}", "t"),)) for n in range(50_000)]
    (block,) = group_messages(rows, Counter())
    assert len(block.message.parts) == len(block.results) == 50_000
    assert not block.joined


# ------------------------------------------------------------------------------ control characters


@pytest.mark.parametrize("character", ["\x1b", "\u200d"])
def test_megabytes_of_control_characters_are_shown_and_searched(
    shell: Shell, character: str
) -> None:
    """In a pipe and on a terminal; the output has at most a dozen bytes for each."""
    amount = 300_000
    with holdfast.open(shell.store) as store:
        store.session("k").append(Message.user(character * amount), Message.user("x == y"))
    assert len(shell.ok("show", "k").encode()) < 12 * amount
    shell.environment["FORCE_COLOR"] = "1"
    for command in (("show", "k"), ("ls",), ("search", "==")):
        assert len(shell.ok(*command).encode()) < 12 * amount


@pytest.mark.parametrize(
    "text",
    [">" * 31_000, "- " * 15_500, "[" * 31_000, "#\n" * 15_500, "`a``b" * 6_000, "|" * 31_000],
    ids=["quotes", "lists", "links", "headings", "code", "tables"],
)
def test_nested_markdown_is_shown(shell: Shell, text: str) -> None:
    with holdfast.open(shell.store) as store:
        store.session("k").append(Message.assistant(text))
    shell.environment["FORCE_COLOR"] = "1"
    assert shell.ok("show", "k")


# ----------------------------------------------------------------------------- fields and settings


@pytest.mark.parametrize("field", ["title", "scope", "agent", "model", "key", "cwd"])
def test_names_of_a_session_have_a_limit(store: holdfast.Store, field: str) -> None:
    with pytest.raises(BadMessage, match=f"{field}: must be 1 to 4096 bytes long"):
        store.create(**{field: "x" * 4_097})  # type: ignore[arg-type]
    assert len(store.sessions()) == 0


def test_metadata_has_a_limit_also_when_it_grows(store: holdfast.Store) -> None:
    with pytest.raises(TooLarge, match=r"metadata: \d+ bytes of JSON are over the limit of 1048"):
        store.create(metadata={"a": "x" * 1_100_000})
    session = store.create(metadata={"a": "x" * 600_000})
    with pytest.raises(TooLarge, match="metadata: "):
        session.update(metadata={"b": "x" * 600_000})
    assert list(session.info().metadata) == ["a"]


def test_json_that_is_nested_without_end_is_a_typed_error(shell: Shell, tmp_path: Path) -> None:
    deep = "[" * 30_000
    ran = shell.run("new", "--meta", f"a:={deep}")
    assert ran.code == 2
    assert "Traceback" not in ran.err
    settings = tmp_path / "deep.toml"
    settings.write_text(f"a = {deep}")
    shell.environment["HOLDFAST_CONFIG"] = str(settings)
    assert "nested too deep" in shell.run("config").err


# -------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize("of", ["bash", "zsh", "fish"])
def test_a_name_that_looks_like_an_option_is_not_completed(shell: Shell, of: str) -> None:
    """It would be taken for one; its session is completed by id."""
    names = ["--force", "-x", "--all\n", "$(touch x)"]
    with holdfast.open(shell.store) as store:
        ids = [store.create(key=name, title=name).id for name in names]
    typed = ("holdfast purge ", " \t\n\"'><=;|&(:") if of == "bash" else ("purge", "")
    lines = shell.ok("__complete", of, *typed).splitlines()
    words = [line.split("\t")[0] for line in lines]
    assert words[0] == "words"
    assert set(ids[:3]) < set(words)
    assert not [word for word in words if word.startswith("-")]
    dashes = ("holdfast purge --", typed[1]) if of == "bash" else ("purge", "--")
    offered = shell.ok("__complete", of, *dashes)
    assert "-x" not in offered.split()


# ------------------------------------------------------------------------- directories and tenants


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_doctor_reports_a_directory_that_others_may_write_to(shell: Shell, mode: int) -> None:
    shell.ok("append", "k", "Hello")
    assert shell.run("doctor").code == 0
    shell.store.parent.chmod(mode)
    ran = shell.run("doctor")
    assert ran.code == 1
    assert f"permissions of home: {mode:o}" in ran.out
    assert "1 problem found" in ran.out


def test_doctor_reports_a_parent_in_which_everybody_may_replace_the_directory(
    shell: Shell, tmp_path: Path
) -> None:
    shell.ok("append", "k", "Hello")
    tmp_path.chmod(0o777)
    ran = shell.run("doctor")
    assert ran.code == 1
    assert f"hint: chmod o-w {tmp_path}" in ran.out


@pytest.mark.parametrize("suffix", ["-search", ".backup"])
def test_doctor_reports_and_mends_every_file_that_others_may_read(
    shell: Shell, suffix: str
) -> None:
    shell.ok("append", "k", "Hello")
    shell.ok("search", "hello")
    file = shell.store.with_name(f"agent.db{suffix}")
    file.touch()
    file.chmod(0o644)
    ran = shell.run("doctor")
    assert ran.code == 1
    assert f"hint: chmod 600 {file}" in ran.out
    shell.run("doctor", "--fix")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_numbers_show_nothing_of_other_tenants(kind: Kind, tmp_path: Path) -> None:
    with place(kind, tmp_path) as url:
        with holdfast.open(url, tenant="mine") as mine:
            mine.session("k").append(Message.user("Hello"))
            mine.search("hello")
            before = (mine.stats(), mine.index_status().bytes)
            with holdfast.open(url, tenant="theirs") as theirs:
                theirs.session("k").append(*(Message.user("word " * 2_000) for _ in range(50)))
                theirs.search("word")
            assert (mine.stats(), mine.index_status().bytes) == before
            assert before[0].file_bytes is None
