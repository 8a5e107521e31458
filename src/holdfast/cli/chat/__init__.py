"""`holdfast chat`: an interactive conversation with an agent.

It continues the latest session of the current directory unless an option says otherwise. There are
two views of one controller (`controller`): on a terminal, a prompt that stays while the agent
answers (`app`); without one, lines from standard input (`plain`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli import params
from holdfast.cli.command import REF, command

if TYPE_CHECKING:
    from holdfast.cli.agent_factory import AgentOptions
    from holdfast.cli.chat.chat_context import ChatContext
    from holdfast.cli.chat.controller import StartOptions, View
    from holdfast.cli.chat.startup import ResumeHint
    from holdfast.cli.signals import SignalHandler


@command(
    "holdfast chat",
    "holdfast chat --new --model openai:gpt-5",
    "holdfast chat --resume support-42",
    "holdfast chat --fork support-42 --at 3",
    "echo 'What is open?' | holdfast chat --scope telegram",
    configured=False,
)
@click.option(
    "--model", "-m", type=params.UTF8_TEXT, help="openai:NAME, anthropic:NAME, local[:PATH]."
)
@click.option("--new", "--no-restore", "new", is_flag=True, help="Start a new conversation.")
@click.option(
    "--resume",
    "--restore-session",
    "resume",
    type=REF,
    metavar="REF",
    help="Continue this session.",
)
@click.option("--fork", type=REF, metavar="REF", help="Fork a new session from this one.")
@click.option("--at", metavar="POINT", help="With --fork: at this message or saved point.")
@click.option("--scope", type=params.UTF8_TEXT, help="Continue the latest session of this scope.")
@click.option(
    "--chain", is_flag=True, help="Start a session for this run that continues the previous one."
)
@click.option("--run-id", type=params.UTF8_TEXT, help="The id of this run.  [default: a new one]")
@click.option("--system", type=params.UTF8_TEXT, metavar="TEXT", help="Instructions for the model.")
@click.option("--no-tools", is_flag=True, help="Do not let the model use tools.")
@click.option("--trust", is_flag=True, help="Continue a session of another person's store.")
@click.option("--yes", "-y", is_flag=True, help="Allow every tool call without asking.")
def chat(
    *,
    model: str | None,
    new: bool,
    resume: str | None,
    fork: str | None,
    at: str | None,
    scope: str | None,
    chain: bool,
    run_id: str | None,
    system: str | None,
    no_tools: bool,
    trust: bool,
    yes: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Talk with an agent.

    Everything is stored as it is said: quit, kill the process or pull the plug, and the next
    `holdfast chat` continues where this one stopped. Without a terminal, prompts are read line by
    line and answered in plain text; the exit code then reports whether the last one was answered.
    /help lists the commands of the chat.

    It asks before tools work in another directory than this one, and before a session is continued
    of a store file that another person may have made; --trust answers that with yes, now and from
    now on.
    """
    if as_json:
        raise click.UsageError("chat has no --json output; use `holdfast run --json`.")
    if sum((new, resume is not None, fork is not None)) > 1:
        raise click.UsageError("--new, --resume and --fork are mutually exclusive.")
    if at is not None and fork is None:
        raise click.UsageError("--at requires --fork.")
    from holdfast.cli.agent_factory import AgentOptions
    from holdfast.cli.chat.controller import StartOptions

    options = AgentOptions(
        model=model, scope=scope, store=store, system=system, tools=not no_tools, yes=yes
    )
    start_options = StartOptions(new=new, resume=resume, fork=fork, at=at, chain=chain)
    return _open_chat(options, start_options, run_id, trust=trust)


def _open_chat(
    options: AgentOptions, start_options: StartOptions, run_id: str | None, *, trust: bool
) -> int:
    from holdfast.cli import agent_factory, signals
    from holdfast.cli.chat import startup

    config = agent_factory.load_config(options)
    if not config.settings.session.restore and start_options.is_unspecified:
        start_options = start_options._replace(new=True)
    with signals.handle_signals() as handler, agent_factory.open_store(config) as opened:
        resume_hint = startup.ResumeHint(options.store)
        context = startup.make_context(opened, config, options, agent_factory.run_id(run_id))
        if trust:
            context.trust.accept()
        try:
            return asyncio.run(_run(context, start_options, handler, resume_hint))
        finally:
            resume_hint.print(opened)


async def _run(
    context: ChatContext,
    start_options: StartOptions,
    signals: SignalHandler,
    resume_hint: ResumeHint,
) -> int:
    from holdfast.cli.chat import startup

    view: View
    if is_terminal():
        from holdfast.cli.chat.app import TerminalView

        view = TerminalView(context)
    else:
        from holdfast.cli.chat.plain import PlainView

        view = PlainView(context)
    return await startup.run_chat(context, view, start_options, signals, resume_hint)


def is_terminal() -> bool:
    """True if input and output are a terminal that supports drawing."""
    drawable = os.environ.get("TERM") not in {"dumb", "unknown", "", None}
    return sys.stdin.isatty() and sys.stdout.isatty() and drawable
