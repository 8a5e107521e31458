"""What all subcommands have in common: `--store`, `--json`, and examples in their help.

A parameter called `ref` or `refs` names a session: the shell completes it. A store that the user
has configured is the default of every command, so that `ls` lists what `chat` wrote.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_REF_HELP: Final = (
    "REF is a session's id, the first characters of it, its key or its title; @latest is the one "
    "written to last, @latest:SCOPE that of a scope, @pinned the only pinned one."
)
_STORE_HELP: Final = (
    "Path or URL of the store (default: $HOLDFAST_URL, else the configured one, else holdfast.db "
    "in your state directory)."
)


class Ref(click.types.StringParamType):
    """A reference to a session: its id, a prefix of it, its key, its title, or @latest.

    `live` and `trashed` say which sessions the shell completes: those outside the trash, those
    in it, or both.
    """

    def __init__(self, *, live: bool = True, trashed: bool = False) -> None:
        self._trashed = [side for side, wanted in ((True, trashed), (False, live)) if wanted]

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's own
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        """Return the sessions that match what was typed."""
        from holdfast.cli import shell_completion

        return shell_completion.sessions(ctx, incomplete, self._trashed)


class FileName(click.types.StringParamType):
    """The name of a file, which may not exist yet."""

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's own
        param: click.Parameter,  # noqa: ARG002 - as above
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        """Return an item that makes the shell complete file names."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


REF: Final = Ref()
ANY_REF: Final = Ref(trashed=True)
TRASHED_REF: Final = Ref(live=False, trashed=True)
FILE: Final = FileName()


class Command(click.Command):
    """A subcommand."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own
        examples: Sequence[str] = (),
        configured: bool = True,
        **fields: Any,  # noqa: ANN401 - as above
    ) -> None:
        """Create a command whose help shows `examples`.

        With `configured` false, `store` is None unless --store is given: the command reads the
        configuration itself.
        """
        fields.setdefault("context_settings", CONTEXT)
        super().__init__(*args, **fields)
        self.examples = tuple(examples)
        for param in self.params:
            if param.name in {"ref", "refs"} and param.type is click.STRING:
                param.type = REF
        if any(isinstance(param.type, Ref) for param in self.params):
            self.help = _with_ref_help(self.help or "")
        callback = _resolve_store if configured else None
        self.params.append(
            click.Option(["--store"], type=FILE, metavar="URL", help=_STORE_HELP, callback=callback)
        )
        self.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, for programs.")
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the examples verbatim."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)


def _with_ref_help(text: str) -> str:
    """Return a help text with an explanation of REF, unless it already has one."""
    return text if "REF is" in text else f"{inspect.cleandoc(text)}\n\n{_REF_HELP}"


def _resolve_store(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:  # noqa: ARG001 - click's own
    """Return the store named by --store, else the configured one."""
    if given is not None or os.environ.get("HOLDFAST_URL"):
        return given
    from holdfast.config import paths

    directory, home = paths.working_directory(), paths.home_directory()
    if not paths.existing_files(os.environ, directory, home):
        return None
    from holdfast.config import loader

    return loader.configured_store(os.environ, directory, home=home)


def command(*examples: str, configured: bool = True) -> Callable[[Callable[..., object]], Command]:
    """Return a decorator that makes a function a subcommand; its docstring is the help."""

    def decorate(function: Callable[..., object]) -> Command:
        return click.command(cls=Command, examples=examples, configured=configured)(function)

    return decorate
