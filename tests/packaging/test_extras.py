"""What is installed: the library alone needs three packages, and each extra adds what it says."""

import json
from itertools import chain
from pathlib import Path

import pytest

from tests.packaging.environments import Environment, pip, project
from tools.frameworks import FRAMEWORKS

# A store, an agent in it, and a server that is not there.
_STORE = """
import holdfast
with holdfast.open("agent.db") as store:
    store.session("k").append(holdfast.Message.user("hello"))
with holdfast.open("agent.db", readonly=True) as store:
    print(*(message.text for message in store.session("k").messages()))
"""
_AGENT = """
import holdfast
from holdfast.agent import Agent, Retry
from holdfast.testing.scripted_model import ScriptedModel, say
def ask(model):
    with holdfast.open("memory:") as store, Agent(model, retry=Retry(attempts=1)) as agent:
        return agent.run(store.session("k"), "hello").text
"""
_NOT_THERE = f"""
{_AGENT}
from holdfast.agent.models.{{0}}_model import {{1}}Model as Model
try:
    print(ask(Model("m", api_key="k", base_url="http://127.0.0.1:9")))
except holdfast.errors.ModelFailed as error:
    print("cannot be reached" in str(error))
"""
_CHECKS = {
    "agent": (f"{_AGENT}print(ask(ScriptedModel(say('Hello.'))))", "Hello."),
    "openai": (_NOT_THERE.format("openai", "OpenAI"), "True"),
    "anthropic": (_NOT_THERE.format("anthropic", "Anthropic"), "True"),
    "local": ("import xllamacpp; print(xllamacpp.CommonParams().model.path == '')", "True"),
    "postgres": ("from psycopg import pq; print(pq.__impl__)", "binary"),
    "tokens": (
        "from holdfast.windows.tokenizers import tokenizer_for as t; print(t('gpt-4o')('hello'))",
        "1",
    ),
}


def test_the_library_needs_three_packages(bare: Environment) -> None:
    assert bare.distributions() == ["apsw", "holdfast", "msgspec", "platformdirs"]
    assert bare.python(_STORE) == "hello\n"


@pytest.mark.parametrize("extra", _CHECKS)
def test_an_extra_brings_what_it_needs(extra: str, wheel: Path, tmp_path: Path) -> None:
    code, printed = _CHECKS[extra]
    assert Environment(tmp_path, wheel, extra).python(code) == f"{printed}\n"


def test_the_command_needs_the_extra_cli_and_no_other(wheel: Path, tmp_path: Path) -> None:
    installed = Environment(tmp_path, wheel, "cli")
    for arguments in (["append", "k", "hello"], ["append", "k", "again"]):
        assert installed.run("holdfast", *arguments, "--store", "agent.db").returncode == 0
    shown = installed.run("holdfast", "show", "k", "--store", "agent.db")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "hello" in shown.stdout
    assert "again" in shown.stdout
    assert installed.run("holdfast", "chat", "--help").returncode == 0


def test_all_is_every_extra_but_the_developers_and_the_frameworks() -> None:
    extras = project()["optional-dependencies"]
    frameworks = {framework.name.replace("_", "-") for framework in FRAMEWORKS}
    (named,) = extras["all"]
    listed = named.removeprefix("holdfast[").removesuffix("]").split(",")
    implied = [name for name in extras if f"holdfast[{name}]" in chain(*extras.values())]
    assert {*listed, *implied} == {*extras} - frameworks - {"dev"}
    assert frameworks < {*extras}


def test_a_program_that_caps_rich_can_have_the_command_too(wheel: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    asked = ["--dry-run", "--ignore-installed", "--report", str(report)]
    pip(tmp_path, "install", *asked, f"{wheel}[cli]", "rich>=14,<15")
    chosen = {
        each["metadata"]["name"]: each["metadata"]["version"]
        for each in json.loads(report.read_text())["install"]
    }
    assert chosen["rich"].startswith("14.")
    assert "holdfast" in chosen
