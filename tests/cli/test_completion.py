"""The Tab key: commands, options, files and sessions, in real shells, and no harm done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.shell_completion import Word, split
from tests.cli.shell import HOSTILE, RAW, Shell
from tests.cli.test_terminal import Tmux

_BREAKS = " \t\n\"'@><=;|&(:"  # what bash has in COMP_WORDBREAKS

# ------------------------------------------------------------------------------ a line of a shell


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [Word("")]),
        ("holdfast", [Word("holdfast")]),
        ("holdfast ", [Word("holdfast"), Word("")]),
        ("holdfast  show\tx", [Word("holdfast"), Word("show"), Word("x")]),
        (r"a my\ key", [Word("a"), Word("my key")]),
        ("a 'my key' x", [Word("a"), Word("my key"), Word("x")]),
        ("a '' x", [Word("a"), Word(""), Word("x")]),
        ("a 'my k", [Word("a"), Word("my k", "'", 0)]),
        ('a "my \\"k', [Word("a"), Word('my "k', '"', 0)]),
        ("a 'b\\", [Word("a"), Word("b\\", "'", 0)]),
        ('a pre"my k', [Word("a"), Word("premy k", '"', 3)]),
        ("a telegram:4", [Word("a"), Word("telegram:4", "", 9)]),
        (r"a telegram\:4", [Word("a"), Word("telegram:4")]),
        ("a 'telegram:4", [Word("a"), Word("telegram:4", "'", 0)]),
        ("a user@ho", [Word("a"), Word("user@ho", "", 4)]),
        ("a --store=x", [Word("a"), Word("--store=x", "", 8)]),
    ],
)
def test_a_line_is_split_as_bash_does(line: str, words: list[Word]) -> None:
    """Also one whose quotes are still open, with the place from which bash replaces."""
    assert split(line, _BREAKS) == words


# --------------------------------------------------------------------------------- what is offered


@pytest.fixture
def many(talked: Shell) -> Shell:
    """A store with sessions whose names need care."""
    with holdfast.open(talked.store) as store:
        store.session("telegram:42", title="The first")
        store.session("telegram:43", title="Other things")
        store.session("my key", title='Say "it\'s $5"')
        store.session("user@host")
        store.trash(store.session("thrown").id)
    return talked


def offered(shell: Shell, *words: str) -> list[str]:
    kind, *lines = shell.ok("__complete", "zsh", *words).splitlines()
    assert kind == "words"
    return [line.partition("\t")[0] for line in lines]


def in_bash(shell: Shell, line: str) -> list[str]:
    return shell.ok("__complete", "bash", line, _BREAKS).splitlines()


def test_commands_and_options_are_offered(shell: Shell) -> None:
    """With what they do, for shells that show it; the hidden one is not."""
    assert offered(shell, "re") == [
        "redo",
        "rewind",
        "rename",
        "restore",
        "restore-backup",
        "recover",
    ]
    assert "show\tShow a conversation." in shell.ok("__complete", "fish", "sh")
    assert offered(shell, "__") == []
    assert set(offered(shell, "--")) == {"--version", "--help"}
    assert offered(shell, "undo", "--t") == ["--turns"]
    assert offered(shell, "append", "a", "--role", "") == ["user", "assistant", "system"]
    assert offered(shell, "purge", "--forks", "k") == ["keep"]
    assert offered(shell, "completion", "") == ["bash", "zsh", "fish"]
    assert offered(shell, "nonsense", "x") == []


@pytest.mark.parametrize(
    "line",
    ["backup ", "import x", "export -o ", "show --store ", "show --store=", "import a.jsonl b"],
)
def test_files_are_left_to_the_shell(shell: Shell, line: str) -> None:
    """It knows them better."""
    assert in_bash(shell, f"holdfast {line}") == ["files"]


def test_sessions_are_offered_by_key_title_and_id(many: Shell) -> None:
    """One name each, newest first, as long as nothing is typed; then whatever fits."""
    assert offered(many, "show", "") == [
        "user@host", "my key", "telegram:43", "telegram:42", "support-42"
    ]  # fmt: skip
    assert offered(many, "show", "tele") == ["telegram:43", "telegram:42"]
    assert offered(many, "show", "A") == ["A parcel"]
    id = many.json("show", "support-42")["session"]["id"]
    assert offered(many, "show", id[:6]) == [id]
    assert offered(many, "append", "support-") == ["support-42"]
    assert offered(many, "new", "--parent", "support-") == ["support-42"]
    assert offered(many, "pin", "telegram:42", "support-") == ["support-42"]


def test_names_that_the_store_gives_are_offered(many: Shell) -> None:
    """Behind an @, with the scopes there are; keys that would mean something else are not."""
    assert offered(many, "show", "@") == ["@latest", "@latest:telegram"]
    with holdfast.open(many.store) as store:
        store.session("@home", scope="x y")
        store.session("@latest", scope="telegram", title="@pinned").update(pinned=True)
    assert offered(many, "show", "@") == [
        "@home", "@latest", "@pinned", "@latest:telegram", "@latest:x y"
    ]  # fmt: skip
    assert offered(many, "append", "@latest:t") == ["@latest:telegram"]
    assert offered(many, "restore", "@") == []
    assert in_bash(many, "holdfast show @latest:x") == ["words", r"x\ y"]
    assert in_bash(many, "holdfast show @p") == ["words", "@pinned"]


def test_filters_of_a_list_are_offered(shell: Shell) -> None:
    """What they may be is known."""
    assert offered(shell, "ls", "--state", "") == ["open", "interrupted", "done", "damaged"]
    assert offered(shell, "ls", "--order", "p") == ["pinned"]


def test_the_trash_is_offered_to_restore(many: Shell) -> None:
    """And first to purge, and to nothing that cannot use it."""
    assert offered(many, "restore", "") == ["thrown"]
    assert offered(many, "purge", "")[:2] == ["thrown", "user@host"]
    assert offered(many, "restore", "th") == ["thrown"]
    assert offered(many, "show", "th") == []


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("tele", ["telegram:43", "telegram:42"]),
        ("telegram:4", ["43", "42"]),
        ("'telegram:4", ["telegram:43", "telegram:42"]),
        ("user@", ["@host"]),
        ("my", [r"my\ key"]),
        (r"my\ k", [r"my\ key"]),
        ('"my k', ["my key"]),
        ("S", [r"Say\ \"it\'s\ \$5\""]),
        ('"S', [r"Say \"it's \$5\""]),
        ("'S", ["Say \"it'\\''s $5\""]),
    ],
)
def test_bash_is_given_what_it_replaces(many: Shell, typed: str, words: list[str]) -> None:
    """Only what stands behind a break or a quote, quoted as it must be there."""
    assert in_bash(many, f"holdfast show {typed}") == ["words", *words]


def test_the_store_that_was_typed_is_asked(shell: Shell, tmp_path: Path) -> None:
    """Also by a path of the shell's, such as ~/other.db."""
    shell.ok("append", "here", "x")
    shell.ok("append", "there", "x", "--store", str(tmp_path / "other.db"))
    shell.environment["HOME"] = str(tmp_path)
    assert offered(shell, "show", "--store", "~/other.db", "") == ["there"]
    assert offered(shell, "show", "--store", "$HOME/other.db", "") == ["there"]
    assert offered(shell, "show", "") == ["here"]


# ---------------------------------------------------------------------------------------- no harm


def test_completing_makes_no_store(shell: Shell) -> None:
    """Where there is none there is nothing to offer, and nothing is said."""
    assert in_bash(shell, "holdfast show ") == []
    assert not shell.store.parent.exists()


@pytest.mark.parametrize("what", ["garbage", "empty", "directory", "newer", "bad url"])
def test_trouble_is_silent(talked: Shell, what: str) -> None:
    """A prompt is no place for errors; the store is left as it is."""
    if what == "directory":
        talked.store.unlink()
        talked.store.mkdir()
    elif what == "bad url":
        talked.environment["HOLDFAST_URL"] = "mysql://there"
    else:
        data = {"garbage": b"not a database " * 500, "empty": b"", "newer": b"SQLite format 4\0"}
        talked.store.write_bytes(data[what])
    before = sorted(talked.store.parent.iterdir())
    assert in_bash(talked, "holdfast show ") == []
    assert sorted(talked.store.parent.iterdir()) == before


@pytest.mark.parametrize(
    "asked", [[], ["bash"], ["zsh"], ["csh", "x"], ["bash", "a", "b", "c"], ["bash", "'", ""]]
)
def test_a_question_that_makes_no_sense_has_no_answer(shell: Shell, asked: list[str]) -> None:
    """Nor an error."""
    assert shell.run("__complete", *asked).code == 0
    assert shell.run("__complete", *asked).err == ""


def test_what_cannot_be_typed_is_not_offered(shell: Shell) -> None:
    """The session is, by its id; and nothing hostile reaches the terminal."""
    with holdfast.open(shell.store) as store:
        id = store.session(f"key{HOSTILE}", title=f"title{HOSTILE}").id
    said = shell.ok("__complete", "zsh", "show", "")
    assert said.splitlines()[1].startswith(f"{id}\t")
    assert not RAW & set(said)
    assert offered(shell, "show", "key") == offered(shell, "show", "title") == []


def test_completing_is_light(many: Shell) -> None:
    """A list of commands loads none of them."""
    code = (
        "import sys\nfrom holdfast.cli.program import run\nrun(['__complete', 'zsh', 's'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=many.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "show" in ran.stdout
    assert not {"holdfast.cli.commands.show", "rich", "asyncio"} & set(ran.stderr.split())


# ------------------------------------------------------------------------------------- real shells


# Each with the same prompt, to be waited for.
_START = {
    "bash": "PS1='ready> ' exec bash --norc --noprofile",
    "zsh": "PS1='ready> ' exec zsh -d -i",
    "fish": "exec fish --no-config -C 'function fish_prompt; printf \"ready> \"; end'",
}
_LOAD = {
    "bash": 'eval "$(holdfast completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(holdfast completion zsh)"',
    "fish": "holdfast completion fish | source",
}


class Prompt(Tmux):
    """A terminal in which a line can be typed without sending it."""

    def write(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def wait_ready(self) -> None:
        """Wait for the empty prompt at the bottom."""
        self.wait_for(lambda screen: screen.rstrip().endswith("ready>"))


@pytest.fixture(params=["bash", "zsh", "fish"])
def terminal(
    many: Shell, tmp_path: Path, fast_program: Path, request: pytest.FixtureRequest
) -> Iterator[Prompt]:
    """A terminal with this shell in it, which has loaded its script."""
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    (tmp_path / "bin").mkdir()
    many.environment["PATH"] = f"{fast_program.parent}:{os.environ['PATH']}"
    many.environment["HOME"] = str(tmp_path)  # Shells keep a history there.
    for name_of in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        many.environment.pop(name_of, None)
    tmux = Prompt(many, tmp_path)
    with tmux:
        tmux.command(_START[name])
        tmux.wait_ready()
        # Only the shell itself puts the two halves together.
        tmux.type(f"{_LOAD[name]}; clear; echo loa''ded")
        tmux.wait_for(lambda screen: screen.startswith("loaded"))
        tmux.wait_ready()
        yield tmux


def press_tab(terminal: Prompt, typed: str, expected: str) -> None:
    """Type, press Tab, wait for what the line becomes, and take it back."""
    terminal.write(typed)
    terminal.press("Tab")
    terminal.wait_for(
        lambda screen: any(at.rstrip().endswith(expected) for at in screen.split("\n"))
    )
    terminal.press("C-u")
    terminal.wait_ready()
    terminal.type("clear; echo cle''an")
    terminal.wait_for(lambda screen: screen.startswith("clean"))
    terminal.wait_ready()


def test_a_real_shell_completes(terminal: Prompt) -> None:
    """Commands, options, and sessions also where a name has spaces, colons or quotes."""
    press_tab(terminal, "holdfast summ", "holdfast summarize")
    press_tab(terminal, "holdfast undo --tu", "holdfast undo --turns")
    press_tab(terminal, "holdfast show supp", "holdfast show support-42")
    press_tab(terminal, "holdfast show tel", "holdfast show telegram:4")
    press_tab(terminal, "holdfast show telegram:42", "holdfast show telegram:42")
    press_tab(terminal, "holdfast show A", r"holdfast show A\ parcel")
    press_tab(terminal, 'holdfast show "A p', 'holdfast show "A parcel"')
    press_tab(terminal, r"holdfast show my\ ", r"holdfast show my\ key")
    press_tab(terminal, "holdfast show user@", "holdfast show user@host")
    press_tab(terminal, "holdfast restore t", "holdfast restore thrown")
    press_tab(terminal, "holdfast import bi", "holdfast import bin/")


def test_what_a_real_shell_completed_runs(terminal: Prompt, many: Shell) -> None:
    """The quotes it put are those it needs."""
    terminal.write("holdfast rename S")
    terminal.press("Tab")
    terminal.wait_for(lambda screen: "$5" in screen)
    terminal.type("plain")
    terminal.wait_for(lambda screen: "plain\n" in screen and "meta" not in screen)
    terminal.wait_for(lambda screen: "→ plain" in screen)
    assert many.json("show", "my key")["session"]["title"] == "plain"
