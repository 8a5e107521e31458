"""The program: the list of commands, and how each run ends.

Commands are imported by name when they are called, so that each start loads only what it uses. A
library error becomes one line and an exit code; a broken pipe or Ctrl-C ends the command quietly.
"""

from __future__ import annotations

import errno
import importlib
import keyword
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TextIO

import click

from holdfast import __version__
from holdfast.cli import errors
from holdfast.cli.command import CONTEXT
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Commands by task, in the order in which a newcomer needs them.
GROUPS: Final[dict[str, dict[str, str]]] = {
    "Talk": {
        "chat": "Talk with an agent.",
        "run": "Ask a model once, from a script.",
        "models": "List the models that can be used here.",
        "config": "Show the settings in effect, and where each is set.",
    },
    "Read": {
        "ls": "List sessions, newest first.",
        "search": "Find what was said.",
        "show": "Show a conversation.",
        "log": "Print the newest messages; with -f, follow new ones.",
        "tree": "Draw a session's branches and forks.",
        "window": "Show what a model would be sent.",
        "stats": "Show how much a store holds, and what it cost.",
    },
    "Write": {
        "new": "Create a session.",
        "append": "Append a message to a session.",
        "summarize": "Store a summary that stands for the messages so far.",
    },
    "Change history (nothing is lost)": {
        "undo": "Undo the last turns.",
        "redo": "Reverse the last undo, rewind or clear.",
        "rewind": "Go back to an earlier message.",
        "clear": "Start again with an empty history.",
        "fork": "Fork a new session at any message.",
    },
    "Organize": {
        "rename": "Set the title of a session.",
        "set": "Change the title, model, scope, directory or metadata.",
        "pin": "Keep sessions at the top of the list.",
        "archive": "Archive sessions: leave them out of the list.",
        "trash": "Move sessions to the trash; `restore` brings them back.",
        "restore": "Bring a session back from the trash.",
        "purge": "Erase sessions for good.",
        "erase": "Erase one message for good, wherever it is shared.",
        "prune": "Clean up old sessions, by rules that you give.",
    },
    "Move data": {
        "export": "Export sessions to a file that any program can read.",
        "import": "Import sessions from an exported file.",
        "backup": "Copy a store while it is in use, and verify the copy.",
        "restore-backup": "Replace a store by a backup, and set aside what was there.",
        "copy": "Copy a whole store into another one, and compare them.",
    },
    "Check": {
        "recover": "Close turns that a crash left open, keeping all of them.",
        "doctor": "Check a store for problems.",
        "index": "Show, rebuild or update the search index.",
        "prove": "Prove that nothing is lost on this disk.",
    },
    "Set up": {
        "completion": "Print a script for completion in your shell.",
    },
}
COMMANDS: Final = {name: line for group in GROUPS.values() for name, line in group.items()}

# A command is a function in the module of its name, unless it shares one with its siblings.
_MODULES: Final = {
    "chat": "chat",
    "redo": "commands.undo",
    "rewind": "commands.undo",
    "clear": "commands.undo",
    "set": "commands.set_",
    "rename": "commands.set_",
    "pin": "commands.set_",
    "archive": "commands.set_",
    "restore": "commands.trash",
    "import": "commands.import_",
}

_EPILOG: Final = """\b
Examples:
  holdfast chat
  holdfast append support-42 "Where is my parcel?"
  holdfast ls
  holdfast show support-42
  holdfast undo support-42     # nothing is lost: `holdfast redo` brings it back

\b
REF, in every command, is a session's id, the first characters of it, its key or its title;
@latest is the one written to last, @latest:SCOPE that of a scope, @pinned the only pinned one.

\b
Exit codes:
  0  done
  1  the command found a problem (doctor, prove, export, import, copy, config --check), a model
     failed, or you declined
  2  usage error: unknown or conflicting arguments
  3  no such session, message or store, or the name matches several
  4  conflict: session busy, id or key taken
  5  the store, its disk or its server failed
  6  no model can be used: the error says what it needs
  129  hung up; 130  interrupted by Ctrl-C; 141  broken pipe; 143  terminated by SIGTERM

The store is a file. Without --store it is the one $HOLDFAST_URL names, else the one that your
holdfast.toml names ([session] store), else holdfast.db in your state directory.
"""


class Program(click.Group):
    """The commands, each imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one command."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"holdfast.cli.{_MODULES.get(name, f'commands.{name}')}")
        found = getattr(module, f"{name}_" if keyword.iskeyword(name) else name)
        assert isinstance(found, click.Command)  # noqa: S101 - the module defines it
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without loading them."""
        widest = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{n:<{widest}}", line) for n, line in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete a command's name, without loading the commands."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=line)
            for name, line in COMMANDS.items()
            if name.startswith(incomplete)
        ]


@click.group(cls=Program, context_settings=CONTEXT, epilog=_EPILOG)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def program() -> None:
    """Keep the conversations of agents: nothing lost, doubled or out of order.

    Every command takes --store URL and --json, and shows examples with --help.
    """


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code."""
    # In this order each of them gets its own descriptor, and no file that is opened later does.
    sys.stdin = sys.stdin or _null_device("r")
    sys.stdout = _escape_unencodable(sys.stdout)
    sys.stderr = _escape_unencodable(sys.stderr)
    # Log records are dropped: commands report damage themselves, with unsafe characters escaped,
    # and retried model calls are already shown as events.
    for name in ("holdfast", "stamina"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        code = _invoke(list(arguments))
        sys.stdout.flush()
        return code
    except HoldfastError as error:
        return errors.report_error(error, as_json="--json" in arguments)
    except click.ClickException as error:
        return _usage_error(error)
    except (click.Abort, KeyboardInterrupt) as interrupted:
        return _interrupted(interrupted)
    except OSError as error:
        return _system_error(error)


def _invoke(arguments: list[str]) -> int:
    """Call the command and return its exit code; a command that returns None succeeded."""
    if arguments[:1] == ["__complete"]:  # called by the completion scripts
        from holdfast.cli import shell_completion

        shell_completion.print_completions(arguments[1:])
        return 0
    # Not `program.main`: it handles a broken pipe itself, with another exit code.
    try:
        with program.make_context("holdfast", arguments) as context:
            result = program.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return result if isinstance(result, int) else 0


def _interrupted(by: BaseException) -> int:
    """Return the exit code of an interrupted command: 130 for Ctrl-C, else that of the signal."""
    code: int = getattr(by, "exit_code", errors.INTERRUPTED)
    if code == errors.INTERRUPTED and sys.stderr.isatty():
        sys.stderr.write("\n")  # The terminal has echoed ^C on this line.
    return code


def _escape_unencodable(stream: TextIO | None) -> TextIO:
    """Return the stream, set to escape characters that its encoding lacks."""
    if stream is None:
        return _null_device("w")
    stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    return stream


def _null_device(mode: Literal["r", "w"]) -> TextIO:
    """Return a stream in place of one that was closed before the program started."""
    return Path(os.devnull).open(mode, encoding="utf-8")


def _usage_error(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        sys.stderr.write(f"{error.format_message()}\n")
        return error.exit_code
    context = getattr(error, "ctx", None)
    if context is None:
        errors.print_error(error.format_message())
        return error.exit_code
    errors.print_error(error.format_message(), f"`{context.command_path} --help` shows how")
    return error.exit_code


def _system_error(error: OSError) -> int:
    """Return the exit code of a system error; report it unless it is a broken pipe."""
    # The interpreter must not try to flush what is still buffered when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return errors.BROKEN_PIPE
    where = f": {error.filename}" if error.filename else ""
    errors.print_error(f"{error.strerror or error}{where}")
    return errors.STORAGE
