"""`holdfast run`: one question to a model, from a script.

The reply is on standard output as it comes, and nothing else is; what happens beside it is said on
standard error, as far as somebody looks or has to know. With --json every event is a line of
standard output, and the last one is the result. Nobody is asked anything: a call that needs consent
is refused unless the options or the configuration allow it.
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
from holdfast.agent.agent import Gathered
from holdfast.agent.approving import refuse_everything
from holdfast.agent.events import TurnEnded
from holdfast.agent.tools.base import Approver
from holdfast.cli import agenting, meaning, problems, signals
from holdfast.cli.agenting import Wishes
from holdfast.cli.answering import Answering, Lines, Started, Words
from holdfast.cli.command import REF, command
from holdfast.cli.given import WORDS
from holdfast.cli.naming import called
from holdfast.cli.wording import words
from holdfast.config.loading import Config
from holdfast.errors import AgentError
from holdfast.records import Content, Text

_MOST_INPUT: Final = 1024 * 1024  # bytes
_PATIENCE: Final = 5.0  # seconds that the end waits for a summary
_SOON: Final = 0.02
_CUT: Final = "only the first {:,} bytes of standard input were taken"
_ADVICE: Final = "name it by its id, or choose another key"


@command(
    'holdfast run "What is a session layer?"',
    'ls -l | holdfast run "Which of these is the largest?" --no-tools',
    'holdfast run --session release-notes --yes "Add what is new since the last tag"',
    "holdfast run --scope nightly --model openai:gpt-5 --json < notes.txt",
    configured=False,
)
@click.argument("prompt", required=False, type=WORDS)
@click.option(
    "--session",
    "name",
    type=REF,
    metavar="KEY-OR-REF",
    help="Go on with this session; a new key begins one.",
)
@click.option("--scope", type=WORDS, help="Go on with the latest session of this scope.")
@click.option("--new", is_flag=True, help="Begin a session, also if the scope has one.")
@click.option("--model", type=WORDS, help="Which model answers; `holdfast models` lists them.")
@click.option("--system", type=WORDS, help="What the model is told about its task.")
@click.option("--yes", "-y", is_flag=True, help="Let it run commands and change files unasked.")
@click.option("--no-tools", is_flag=True, help="Let it only talk.")
@click.option("--max-rounds", type=click.IntRange(min=1), help="Most calls of the model.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long for a session that is busy.",
)
@click.option("--run-id", type=WORDS, help="What this run goes by (default: $HOLDFAST_RUN_ID).")
def run(
    *,
    prompt: str | None,
    name: str | None,
    scope: str | None,
    new: bool,
    model: str | None,
    system: str | None,
    yes: bool,
    no_tools: bool,
    max_rounds: int | None,
    wait: float,
    run_id: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Ask a model once, from a script.

    What comes on standard input is added to the PROMPT, or is the prompt if there is none; it is
    read to its end, so a script that has another use for it says < /dev/null. Without --session
    and --scope ($HOLDFAST_SCOPE) each run begins a session of its own, in the current directory.

    The reply goes to standard output. With --json every event is a line there, and the last one is
    the result. Exit codes: 0 when the model has answered, 1 if it failed or did not come to an end,
    6 if it cannot be used here. Ctrl-C and SIGTERM keep what was said so far and end with 130 and
    143.
    """
    if name is not None and (new or scope is not None):
        raise click.UsageError("--session says which; it excludes --new and --scope.")
    wishes = Wishes(
        model=model,
        scope=scope,
        store=store,
        system=system,
        rounds=max_rounds,
        wait=wait,
        tools=not no_tools,
        yes=yes,
    )
    with signals.heard() as told:
        config = agenting.configured(wishes)
        choice = agenting.choose(config)
        made = agenting.build(config, choice)
        asked, cut = _asked(prompt)
        with agenting.open_store(config) as opened:
            session, begun = _session(opened, config, name, new=new)
            started = Started(
                session=session.id,
                key=session.key,
                new=begun,
                model=made.name,
                why=choice.why,
                run_id=agenting.run_id(run_id),
            )
            answering = Lines() if as_json else Words()
            answering.begin(started)
            root, elsewhere = _settle_in(session)
            gone = agenting.tidied(opened, config, keep=session.id)
            for notice in filter(None, (cut, elsewhere, gone)):
                answering.notice(notice)
            ask = _refuser(answering)
            parts = agenting.arguments(config, wishes, opened, root, ask, model=made)
            run = _Run(told, Agent(made, **parts, titles=False), answering)
            code = run.answer(session, asked, started.run_id)
            answering.aside(f"to go on:  {_go_on(session, store)}")
            return code


def _asked(prompt: str | None) -> tuple[Content, str | None]:
    """Put the prompt and what comes on standard input together; say so if that was too much."""
    given, cut = _input()
    notice = _CUT.format(_MOST_INPUT) if cut else None
    if prompt is None or prompt == "-":
        if not given.strip():
            raise click.UsageError("There is no prompt; give one, or have it on standard input.")
        return given, notice
    if not given.strip():
        return prompt, notice
    said = f"This is on standard input{', cut off at its end' if cut else ''}:"
    fence = "`" * max(3, _longest_run(given) + 1)
    return [Text(prompt), Text(f"{said}\n\n{fence}\n{given}\n{fence}")], notice


def _longest_run(text: str) -> int:
    """Count the backticks that stand together: a fence must be longer."""
    return max(map(len, re.findall("`+", text)), default=0)


def _input() -> tuple[str, bool]:
    """Read standard input unless it is a terminal, up to a limit; true if there was more."""
    if sys.stdin is None or sys.stdin.isatty():
        return "", False
    data = sys.stdin.buffer.read(_MOST_INPUT + 1)
    cut = len(data) > _MOST_INPUT
    try:
        # What is cut off in the middle of a character ends before it.
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:_MOST_INPUT], final=not cut)
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"Standard input is not UTF-8 (byte {error.start + 1}); nothing was stored."
        ) from error
    return text.removesuffix("\n"), cut


def _session(
    opened: holdfast.Store, config: Config, name: str | None, *, new: bool
) -> tuple[holdfast.Session, bool]:
    """Find the session, or begin one; true if it is new."""
    scope, cwd = config.settings.session.scope, str(Path.cwd())
    if name is not None:

        def make(key: str) -> holdfast.Session:
            return opened.session(key, scope=scope, cwd=cwd)

        return meaning.find(opened, name, make, advice=_ADVICE)
    found = opened.latest(scope=scope) if scope is not None and not new else None
    if found is not None:
        return found, False
    return opened.create(scope=scope, cwd=cwd), True


def _settle_in(session: holdfast.Session) -> tuple[str, str | None]:
    """Return where tools work, and what is to be said; a session that lost its place moves here."""
    cwd = session.info().cwd
    root, notice = agenting.workplace(cwd)
    if cwd is not None and cwd != root:
        session.update(cwd=root)
    return root, notice


def _go_on(session: holdfast.Session, store: str | None) -> str:
    behind = "" if store is None else f" --store {shlex.quote(store)}"
    return f"holdfast run --session {called(session)}{behind}"


def _refuser(answering: Answering) -> Approver:
    """Refuse what asks, and say how it can be allowed: nobody is there to be asked."""

    async def refuse(ask: Ask) -> bool | str:
        what = f"{ask.call.name}, {words(ask.what)}"
        answering.notice(f"not allowed: {what} (--yes, or [approve] in holdfast.toml, allows it)")
        return await refuse_everything(ask)

    return refuse


class _Run:
    """One question and its answer."""

    def __init__(self, told: signals.Signals, agent: Agent, answering: Answering) -> None:
        self._over = threading.Event()
        self._ended = False
        self._told = told
        self._agent = agent
        self._answering = answering
        self._gathered = Gathered()

    def answer(self, session: holdfast.Session, asked: Content, run_id: str) -> int:
        """Let the model answer; give the exit code."""
        try:
            with self._told.telling(self._cancel):
                self._stream(session, asked, run_id)
        except AgentError as error:
            self._end(problems.exit_code(error))
            raise
        finally:
            self._over.set()
            # After a signal nobody waits for what is done beside.
            self._agent.close(settle=_PATIENCE if self._told.came is None else 0.0)
        code = self._code()
        self._end(code)
        return code

    def _stream(self, session: holdfast.Session, asked: Content, run_id: str) -> None:
        with closing(self._agent.stream(session, asked, run_id=run_id)) as events:
            for event in events:
                self._gathered.take(event)
                self._answering.take(event)
                self._ended = self._ended or isinstance(event, TurnEnded)

    def _end(self, code: int) -> None:
        if self._ended:  # else a signal came before there was a turn
            self._answering.end(self._gathered.result(), code)

    def _cancel(self, came: signal.Signals) -> bool:
        # Between the first signal that counts and the first step of the turn there is a moment.
        while not self._agent.cancel(signals.why(came)) and not self._over.wait(_SOON):
            pass
        return False

    def _code(self) -> int:
        if self._told.came is not None:
            return signals.exit_code(self._told.came)
        result = self._gathered.result()
        whole = result.state == "sealed" and result.error is None
        return 0 if whole else problems.FOUND_A_PROBLEM
