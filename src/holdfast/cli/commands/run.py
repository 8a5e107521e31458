"""`holdfast run`: one prompt to a model, from a script.

Standard output has the reply as it streams and nothing else; notices go to standard error. With
--json every event is a line of standard output, and the last line is the result. There is no user
to ask: a tool call that needs consent is refused unless the options or the configuration allow it.
"""

from __future__ import annotations

import codecs
import re
import shlex
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Final

import click

import holdfast
from holdfast.agent import Agent, Ask
from holdfast.agent.agent import ResultBuilder
from holdfast.agent.approval import refuse_everything
from holdfast.agent.events import TurnEnded
from holdfast.agent.tools.protocol import Approver
from holdfast.cli import agent_factory, errors, session_choice, signals
from holdfast.cli.agent_factory import AgentOptions
from holdfast.cli.command import REF, command
from holdfast.cli.known_stores import StoreTrust
from holdfast.cli.output.humanize import shorten
from holdfast.cli.output.labels import short_name
from holdfast.cli.params import UTF8_TEXT
from holdfast.cli.run_output import JsonLinesOutput, RunOutput, RunStarted, TextOutput
from holdfast.config.loader import Config
from holdfast.errors import AgentError
from holdfast.values import Content, Text

_MAX_INPUT_BYTES: Final = 1024 * 1024  # bytes
_SETTLE_TIMEOUT_S: Final = 5.0  # seconds to wait for a summary at the end
_POLL_S: Final = 0.02  # seconds
_CUT: Final = "only the first {:,} bytes of standard input were used"
_ADVICE: Final = "pass its id, or choose another key"


@command(
    'holdfast run "What is a session layer?"',
    'ls -l | holdfast run "Which of these is the largest?" --no-tools',
    'holdfast run --session release-notes --yes "Add what is new since the last tag"',
    "holdfast run --scope nightly --model openai:gpt-5 --json < notes.txt",
    configured=False,
)
@click.argument("prompt", required=False, type=UTF8_TEXT)
@click.option(
    "--session",
    "name",
    type=REF,
    metavar="KEY-OR-REF",
    help="Continue this session; a new key creates one.",
)
@click.option("--scope", type=UTF8_TEXT, help="Continue the latest session of this scope.")
@click.option("--new", is_flag=True, help="Create a session, even if the scope has one.")
@click.option("--model", type=UTF8_TEXT, help="The model to use; `holdfast models` lists them.")
@click.option("--system", type=UTF8_TEXT, help="Instructions for the model.")
@click.option("--yes", "-y", is_flag=True, help="Allow every tool call without asking.")
@click.option("--trust", is_flag=True, help="Continue a session of another person's store.")
@click.option("--no-tools", is_flag=True, help="Do not let the model use tools.")
@click.option("--max-rounds", type=click.IntRange(min=1), help="Maximum number of model calls.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="How long to wait for a busy session.",
)
@click.option("--run-id", type=UTF8_TEXT, help="The id of this run (default: $HOLDFAST_RUN_ID).")
def run(
    *,
    prompt: str | None,
    name: str | None,
    scope: str | None,
    new: bool,
    model: str | None,
    system: str | None,
    yes: bool,
    trust: bool,
    no_tools: bool,
    max_rounds: int | None,
    wait: float,
    run_id: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Ask a model once, from a script.

    Standard input is appended to the PROMPT, or is the prompt if there is none; it is read to its
    end, so pass < /dev/null in a script that needs it for something else. Without --session and
    --scope ($HOLDFAST_SCOPE) each run creates a session, in the current directory.

    Its tools work in the current directory. A tool call that needs consent is refused, unless a
    rule in holdfast.toml or --yes allows it. A session of a store file that another person may have
    made is continued only with --trust, which is remembered for that store.

    The reply goes to standard output. With --json every event is a line there, and the last one is
    the result. Exit codes: 0 if the model answered, 1 if it failed or did not finish, 6 if it
    cannot be used here. Ctrl-C and SIGTERM keep what was said so far and exit with 130 and 143.
    """
    if name is not None and (new or scope is not None):
        raise click.UsageError("--session cannot be combined with --new or --scope.")
    options = AgentOptions(
        model=model,
        scope=scope,
        store=store,
        system=system,
        rounds=max_rounds,
        wait=wait,
        tools=not no_tools,
        yes=yes,
    )
    with signals.handle_signals() as handler:
        config = agent_factory.load_config(options)
        choice = agent_factory.choose_model(config)
        made = agent_factory.build_model(config, choice)
        content, cut = _build_prompt(prompt)
        with agent_factory.open_store(config) as opened:
            session, created = _session(opened, config, name, new=new)
            if not created:
                _require_trust(StoreTrust(opened, config.settings.session.store), given=trust)
            started = RunStarted(
                session=session.id,
                key=session.key,
                new=created,
                model=made.name,
                why=choice.why,
                run_id=agent_factory.run_id(run_id),
            )
            output = JsonLinesOutput() if as_json else TextOutput()
            output.begin(started)
            elsewhere = _note_directory(session)
            trashed = agent_factory.apply_retention(opened, config, keep=session.id)
            for notice in filter(None, (cut, elsewhere, trashed)):
                output.notice(notice)
            approve = _refusing_approver(output)
            arguments = agent_factory.agent_arguments(
                config, options, opened, str(Path.cwd()), approve, model=made
            )
            run = _Run(handler, Agent(made, **arguments, titles=False), output)
            code = run.answer(session, content, started.run_id)
            output.aside(f"to continue:  {_resume_command(session, store)}")
            return code


def _build_prompt(prompt: str | None) -> tuple[Content, str | None]:
    """Return the prompt with standard input, and a notice if the input was cut."""
    given, cut = _read_input()
    notice = _CUT.format(_MAX_INPUT_BYTES) if cut else None
    if prompt is None or prompt == "-":
        if not given.strip():
            raise click.UsageError("No prompt; pass one as an argument or on standard input.")
        return given, notice
    if not given.strip():
        return prompt, notice
    heading = f"This is on standard input{', cut off at its end' if cut else ''}:"
    fence = "`" * max(3, _longest_run(given) + 1)
    return [Text(prompt), Text(f"{heading}\n\n{fence}\n{given}\n{fence}")], notice


def _longest_run(text: str) -> int:
    """Return the length of the longest run of backticks: a fence must be longer."""
    return max(map(len, re.findall("`+", text)), default=0)


def _read_input() -> tuple[str, bool]:
    """Read standard input unless it is a terminal, up to a limit; true if there was more."""
    if sys.stdin.isatty():
        return "", False
    data = sys.stdin.buffer.read(_MAX_INPUT_BYTES + 1)
    cut = len(data) > _MAX_INPUT_BYTES
    try:
        # An incomplete character at the cut is dropped.
        text = codecs.getincrementaldecoder("utf-8")().decode(
            data[:_MAX_INPUT_BYTES], final=not cut
        )
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"Standard input is not UTF-8 (byte {error.start + 1}); nothing was stored."
        ) from error
    return text.removesuffix("\n"), cut


def _session(
    opened: holdfast.Store, config: Config, name: str | None, *, new: bool
) -> tuple[holdfast.Session, bool]:
    """Return the session, and true if it was created."""
    scope, cwd = config.settings.session.scope, str(Path.cwd())
    if name is not None:

        def make(key: str) -> holdfast.Session:
            return opened.session(key, scope=scope, cwd=cwd)

        return session_choice.find_or_create(opened, name, make, advice=_ADVICE)
    found = opened.latest(scope=scope) if scope is not None and not new else None
    if found is not None:
        return found, False
    return opened.create(scope=scope, cwd=cwd), True


def _require_trust(store: StoreTrust, *, given: bool) -> None:
    if given:
        store.accept()
    else:
        store.require()


def _note_directory(session: holdfast.Session) -> str | None:
    """Return a notice if the session was started elsewhere; move it here if that is gone."""
    here, cwd = str(Path.cwd()), session.info().cwd
    if agent_factory.is_missing(cwd):
        session.update(cwd=here)
        return f"{cwd}, where this session was started, does not exist; tools work in {here}"
    there = agent_factory.other_directory(cwd)
    return None if there is None else agent_factory.tools_work_here(here, there)


def _resume_command(session: holdfast.Session, store: str | None) -> str:
    option = "" if store is None else f" --store {shlex.quote(store)}"
    return f"holdfast run --session {short_name(session)}{option}"


def _refusing_approver(output: RunOutput) -> Approver:
    """Return an approver that refuses every call, and prints how to allow it."""

    async def refuse(ask: Ask) -> bool | str:
        what = f"{ask.call.name}, {shorten(ask.what)}"
        output.notice(f"not allowed: {what} (--yes, or [approve] in holdfast.toml, allows it)")
        return await refuse_everything(ask)

    return refuse


class _Run:
    """One prompt and its answer."""

    def __init__(self, handler: signals.SignalHandler, agent: Agent, output: RunOutput) -> None:
        self._finished = threading.Event()
        self._ended = False
        self._signals = handler
        self._agent = agent
        self._output = output
        self._builder = ResultBuilder()

    def answer(self, session: holdfast.Session, content: Content, run_id: str) -> int:
        """Run the agent; return the exit code."""
        try:
            with self._signals.notifying(self._cancel):
                self._stream(session, content, run_id)
        except AgentError as error:
            self._end(errors.exit_code(error))
            raise
        finally:
            self._finished.set()
            # After a signal background tasks are not waited for.
            self._agent.close(settle=_SETTLE_TIMEOUT_S if self._signals.received is None else 0.0)
        code = self._exit_code()
        self._end(code)
        return code

    def _stream(self, session: holdfast.Session, content: Content, run_id: str) -> None:
        with closing(self._agent.stream(session, content, run_id=run_id)) as events:
            for event in events:
                self._builder.add(event)
                self._output.take(event)
                self._ended = self._ended or isinstance(event, TurnEnded)

    def _end(self, code: int) -> None:
        if self._ended:  # Otherwise a signal arrived before the turn started.
            self._output.end(self._builder.result(), code)

    def _cancel(self, received: signal.Signals) -> bool:
        # A turn cannot be cancelled before it has started, so this is repeated.
        while not self._agent.cancel(signals.describe(received)) and not self._finished.wait(
            _POLL_S
        ):
            pass
        return False

    def _exit_code(self) -> int:
        if self._signals.received is not None:
            return signals.exit_code(self._signals.received)
        result = self._builder.result()
        whole = result.state == "sealed" and result.error is None
        return 0 if whole else errors.PROBLEM_FOUND
