"""What all subcommands have in common: `--store`, `--json`, and examples in their help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_WHERE: Final = "Path or URL of the store (default: $HOLDFAST_URL, else your own store)."


class Command(click.Command):
    """A subcommand."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **fields: Any) -> None:  # noqa: ANN401 - click's own
        """Take the shell lines that the help shows, beside what click takes."""
        fields.setdefault("context_settings", CONTEXT)
        super().__init__(*args, **fields)
        self.examples = tuple(examples)
        self.params.append(click.Option(["--store"], metavar="URL", help=_WHERE))
        self.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, for programs.")
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the examples as they are."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)


def command(*examples: str) -> Callable[[Callable[..., object]], Command]:
    """Make a function a subcommand; its docstring is the help."""

    def decorate(function: Callable[..., object]) -> Command:
        return click.command(cls=Command, examples=examples)(function)

    return decorate
