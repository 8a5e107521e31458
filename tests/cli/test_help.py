"""The help is true: every example runs, every command is listed, and starting is light."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

import holdfast
from holdfast.cli.program import COMMANDS, GROUPS, program
from tests.agent.provider import Provider, environment
from tests.cli.shell import Shell
from tests.store_urls import place

# What `prove` shows takes its time; its own tests run it.
_NAMES = [name for name in COMMANDS if name != "prove"]
_SERVER = "postgresql://holdfast_worker@db.example/agents"


def test_every_command_that_a_message_or_a_page_names_exists() -> None:
    root = Path(__file__).parents[2]
    files = [root / "README.md", *root.glob("docs/*.md"), *root.glob("src/**/*.py")]
    named = {
        (name, file.name)
        for file in files
        for name in re.findall(r"`holdfast ([a-z]+(?:-[a-z]+)*)", file.read_text())
    }
    assert [one for one in named if one[0] not in COMMANDS] == []


def _command(name: str) -> click.Command:
    found = program.get_command(click.Context(program), name)
    assert found is not None
    return found


def _help(name: str) -> str:
    found = _command(name)
    context = click.Context(found, info_name=f"holdfast {name}", **found.context_settings)
    return found.get_help(context)


def _examples(text: str) -> list[str]:
    [_, behind] = text.split("Examples:\n")
    lines = [line.strip() for line in behind.split("\n\n")[0].splitlines()]
    return [line for line in lines if line]


_EXAMPLES = [
    *_examples(program.get_help(click.Context(program, info_name="holdfast"))),
    *(example for name in _NAMES for example in _examples(_help(name))),
]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """A model that answers, for the commands that talk."""
    with Provider() as running:
        yield running


@pytest.mark.parametrize("example", _EXAMPLES)
def test_every_example_runs(
    crashed: Shell, tmp_path: Path, provider: Provider, fast_program: Path, example: str
) -> None:
    """As written, in a shell, on a store in use; one that goes on is ended by Ctrl-C."""
    crashed.environment["PATH"] = f"{fast_program.parent}:{os.environ['PATH']}"
    crashed.environment["HOME"] = str(tmp_path)
    crashed.environment["XDG_CONFIG_HOME"] = str(tmp_path / ".config")
    crashed.environment |= environment(provider.url)
    _prepare(crashed, tmp_path, example)
    endless = " -f " in f"{example} " or example == "holdfast index run"
    with (
        _with_a_server(example, tmp_path) as line,
        subprocess.Popen(
            ["/bin/sh", "-c", line],
            cwd=tmp_path,
            env=crashed.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        if endless:
            assert process.stdout is not None
            assert process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert err == b""
    # The store has an interrupted session, which `doctor` finds and `doctor --fix` closes.
    found = "doctor" in example and "--fix" not in example
    expected = {130, -signal.SIGINT} if endless else {int(found)}
    assert process.returncode in expected, out


@contextmanager
def _with_a_server(example: str, folder: Path) -> Iterator[str]:
    """Name a real server where an example names one."""
    if _SERVER not in example:
        yield example
        return
    with place("postgres", folder) as url:
        yield example.replace(_SERVER, f"'{url}'")


def _prepare(shell: Shell, directory: Path, example: str) -> None:
    """Make what an example speaks of."""
    (directory / "notes.txt").write_text("Call back on Monday.\n")
    (directory / ".zfunc").mkdir()
    (directory / ".config" / "fish" / "completions").mkdir(parents=True)
    if "--store backup.db" in example or "copy" in example or "restore-backup" in example:
        shell.ok("backup", str(directory / "backup.db"))
    if example.startswith("holdfast redo"):
        shell.ok("undo", "support-42")
    if example.startswith("holdfast restore "):
        shell.ok("trash", "support-42")
    if example.startswith("holdfast import"):
        shell.ok("export", "-o", str(directory / "everything.jsonl"))
        shell.ok("export", "-o", str(directory / "parcel.jsonl"), "support-42")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_what_all_have(name: str) -> None:
    """`--json`, `--store`, `--help`, examples, and the line that the list of commands shows."""
    text = _help(name)
    for part in ("--json", "--store URL", "-h, --help"):
        assert part in text
    assert len(_examples(text)) >= 2
    usage = text.partition("\n")[0]
    assert "REF is a session's id" in text or "REF" not in usage
    assert _command(name).get_short_help_str(limit=200) == COMMANDS[name]


def test_the_program_lists_commands_and_exit_codes(shell: Shell) -> None:
    """`holdfast`, `holdfast -h` and `holdfast --help`."""
    said = shell.ok("--help")
    assert shell.ok("-h") == said
    assert all(f"  {name} " in said for name in COMMANDS)
    codes = said.partition("Exit codes:")[2]
    assert all(f" {code}  " in codes for code in (0, 1, 2, 3, 4, 5, 6, 129, 130, 141, 143))
    without = shell.run()
    assert without.code == 2
    assert "Read:" in without.err


def test_the_program_lists_commands_in_the_order_one_meets_them(shell: Shell) -> None:
    """In groups: talk, read, write, change history, organize, move data, check, set up."""
    said = shell.ok("--help")
    places = [said.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    for (title, commands), start in zip(GROUPS.items(), places, strict=True):
        lines = said[start + 1 :].split("\n\n")[0].splitlines()
        assert lines[0] == f"{title}:"
        assert [line.split()[0] for line in lines[1:]] == list(commands)


def test_the_installed_command_is_the_same_program() -> None:
    """The entry point and `python -m holdfast` say the same version."""
    installed = Path(sys.executable).with_name("holdfast")
    for command in ([str(installed)], [sys.executable, "-m", "holdfast"]):
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert said.stdout == f"holdfast {holdfast.__version__}\n"


_LOADED = """
import sys
from holdfast.cli import main
sys.argv = ["holdfast", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--version"], {"click", "rich", "apsw", "asyncio", "holdfast.cli.program"}),
        (
            ["--help"],
            {"rich", "apsw", "asyncio", "holdfast.cli.commands.ls", "holdfast.cli.commands.prove"},
        ),
        (["config"], {"rich", "apsw", "asyncio", "holdfast.agent", "holdfast.cli.commands.run"}),
        (["ls"], {"rich", "asyncio", "holdfast.agent", "holdfast.config.loader", "tomllib"}),
        (["ls"], {"holdfast.cli.commands.show", "holdfast.cli.commands.prove"}),
        (["show", "support-42"], {"rich", "asyncio", "holdfast.cli.commands.ls"}),
    ],
)
def test_starting_loads_only_what_is_used(
    talked: Shell, arguments: list[str], absent: set[str]
) -> None:
    """Heavy packages wait until something needs them."""
    ran = subprocess.run(
        [sys.executable, "-c", _LOADED.format(arguments=arguments)],
        env=talked.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout
    assert absent & set(ran.stderr.split()) == set()
