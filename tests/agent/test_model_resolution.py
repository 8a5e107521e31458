"""Model resolution: which model is used, why, and what it lacks."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from holdfast.agent.models import model_choice, weights
from holdfast.agent.models.local_model import LocalModel
from holdfast.agent.models.model_choice import DEFAULTS, ModelChoice, ModelSettings, parse_spec
from holdfast.errors import Invalid, ModelMissing
from tests.agent.ggufs import made

_ANTHROPIC = {"ANTHROPIC_API_KEY": "sk-ant"}
_OPENAI = {"OPENAI_API_KEY": "sk-oai"}


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has fetched nothing yet."""
    home = tmp_path / "data"
    monkeypatch.setattr(weights, "default_directory", lambda: home)
    return home


# -------------------------------------------------------------------------------------- choosing


@pytest.mark.parametrize(
    ("named", "environ", "spec", "why"),
    [
        ("openai:gpt-5", {"HOLDFAST_MODEL": "local", **_ANTHROPIC}, "openai:gpt-5", "--model"),
        (None, {"HOLDFAST_MODEL": "claude-x", **_OPENAI}, "anthropic:claude-x", "HOLDFAST_MODEL"),
        (
            None,
            {**_ANTHROPIC, **_OPENAI},
            f"anthropic:{DEFAULTS['anthropic']}",
            "ANTHROPIC_API_KEY",
        ),
        (None, _OPENAI, f"openai:{DEFAULTS['openai']}", "OPENAI_API_KEY is set"),
        (None, {"OPENAI_BASE_URL": "http://localhost:1/v1"}, "openai", "OPENAI_BASE_URL is set"),
        (None, {"OPENAI_BASE_URL": "http://localhost:1/v1", **_OPENAI}, "openai", "OPENAI_API_KEY"),
        (None, {}, "local", "no model is named, and no key is set"),
        (None, {"HOLDFAST_MODEL": "", "OPENAI_API_KEY": ""}, "local", "no key is set"),
    ],
)
def test_the_first_word_wins(
    named: str | None, environ: dict[str, str], spec: str, why: str
) -> None:
    """The one that is named, then the environment's, then a key's, then the local one."""
    choice = model_choice.choose(ModelSettings(environ=environ), named, "--model says so")
    assert choice.spec == spec
    assert why in choice.why


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("openai:gpt-5", "openai:gpt-5"),
        ("openai:llama3.2:3b", "openai:llama3.2:3b"),
        ("openai", f"openai:{DEFAULTS['openai']}"),
        ("anthropic", f"anthropic:{DEFAULTS['anthropic']}"),
        ("gpt-5", "openai:gpt-5"),
        ("o3-mini", "openai:o3-mini"),
        ("chatgpt-4o-latest", "openai:chatgpt-4o-latest"),
        ("Claude-Opus-5", "anthropic:Claude-Opus-5"),
        ("local", "local"),
        ("smollm2", "local"),
        ("SmolLM2-135M-Instruct.Q4_1", "local"),
        ("local:/models/big.gguf", "local:/models/big.gguf"),
        ("big.gguf", "local:big.gguf"),
        ("./models/big", "local:./models/big"),
        ("~/big", "local:~/big"),
        (" gpt-5 ", "openai:gpt-5"),
    ],
)
def test_a_name_tells_whose_it_is(text: str, spec: str) -> None:
    """What was understood is understood again."""
    assert str(parse_spec(text)) == spec
    assert str(parse_spec(spec)) == spec


@pytest.mark.parametrize("text", ["", "llama3.2:3b", "openai:", "local:", "mistral", "opus"])
def test_a_name_that_tells_nothing_is_refused(text: str) -> None:
    """The error says how it is written."""
    with pytest.raises(Invalid, match=r"openai:|local:NAME"):
        parse_spec(text)


def test_another_server_may_have_any_name() -> None:
    """But a name that tells whose it is still does."""
    elsewhere = ModelSettings(environ={}, base_url="http://localhost:11434/v1")
    assert model_choice.choose(elsewhere, "llama3.2:3b").spec == "openai:llama3.2:3b"
    assert model_choice.choose(elsewhere, "claude-opus-5").spec == "anthropic:claude-opus-5"
    assert model_choice.choose(elsewhere, "openai").spec == "openai"


# -------------------------------------------------------------------------------------- building


def built(spec: str, **settings: object) -> tuple[str, int, int, str]:
    """Build a model; gives its name, sizes and support of tools."""
    given = ModelSettings(**{"environ": {}, **settings})  # type: ignore[arg-type]
    model = model_choice.build(ModelChoice(spec, "asked for"), given)
    asyncio.run(model.close())
    return model.name, model.context, model.max_output, model.tools


def test_hosted_models_are_built() -> None:
    """With what the settings say of them."""
    name, _, _, tools = built("claude-opus-5", environ=_ANTHROPIC)
    assert (name, tools) == ("claude-opus-5", "native")
    name, _, _, tools = built("gpt-5", environ=_OPENAI)
    assert (name, tools) == ("gpt-5", "native")
    sizes = {"context": 5000, "max_output": 700}
    assert built("gpt-5", environ=_OPENAI, **sizes) == ("gpt-5", 5000, 700, "native")
    small = built("llama3", base_url="http://localhost:1/v1", **sizes)
    assert small == ("llama3", 5000, 700, "lenient")
    assert built("llama3", base_url="http://localhost:1/v1", tools="text")[3] == "text"


def test_a_file_is_built(tmp_path: Path) -> None:
    """Relative, absolute, or at home."""
    path = tmp_path / "some.gguf"
    facts: dict[str, str | int] = {"general.architecture": "x", "x.context_length": 2048}
    path.write_bytes(made(facts, {}))
    assert built(f"local:{path}")[:2] == ("some", 2048)
    assert built(str(path), context=1024)[1] == 1024


def test_the_default_model_is_built_once_it_is_here(data_home: Path) -> None:
    """From the package or from where it was fetched to."""
    if weights.find() is None:
        with pytest.raises(ModelMissing, match="holdfast models get smollm2"):
            built("local")
        return
    assert built("local") == ("SmolLM2-135M-Instruct.Q4_1", 8192, 512, "none")


@pytest.mark.parametrize(
    ("spec", "environ", "needs"),
    [
        ("gpt-5", {}, "set OPENAI_API_KEY"),
        ("gpt-5", _ANTHROPIC, "set OPENAI_API_KEY"),
        ("claude-opus-5", {}, "set ANTHROPIC_API_KEY"),
        ("openai", {"OPENAI_BASE_URL": "http://localhost:1/v1"}, "which of that server's models"),
        ("local:/nowhere/x.gguf", {}, "there is no file /nowhere/x.gguf"),
    ],
)
def test_what_is_missing_is_said(spec: str, environ: dict[str, str], needs: str) -> None:
    """Exactly what to do."""
    with pytest.raises(ModelMissing, match=needs):
        built(spec, environ=environ)


@pytest.mark.parametrize(
    ("spec", "package", "needs"),
    [
        ("gpt-5", "openai", r"pip install 'holdfast\[openai\]'; set OPENAI_API_KEY"),
        ("claude-x", "anthropic", r"pip install 'holdfast\[anthropic\]'; set ANTHROPIC_API_KEY"),
        ("local", "xllamacpp", r"pip install 'holdfast\[local\]'"),
    ],
)
def test_a_package_that_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, spec: str, package: str, needs: str
) -> None:
    """With everything else that is missing, at once."""
    real = importlib.util.find_spec

    def without(name: str) -> object:
        return None if name == package else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ModelMissing, match=needs):
        built(spec)


def test_without_weights_it_says_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are one command away."""
    monkeypatch.setattr(weights, "find", lambda: None)
    with pytest.raises(ModelMissing, match="`holdfast models get smollm2` downloads them"):
        built("local")


# ------------------------------------------------------------------------------------------ keys


class Seen:
    """A hosted model that only remembers what it was built with."""

    given: dict[str, object]

    def __init__(self, name: str, **given: object) -> None:
        Seen.given = {"name": name, **given}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> type[Seen]:
    monkeypatch.setattr("holdfast.agent.models.openai_model.OpenAIModel", Seen)
    monkeypatch.setattr("holdfast.agent.models.anthropic_model.AnthropicModel", Seen)
    return Seen


_KEYS = {**_ANTHROPIC, **_OPENAI, "ROUTER_KEY": "sk-router"}
_ELSEWHERE = "https://router.example/v1"


@pytest.mark.parametrize(
    ("spec", "settings", "key", "url"),
    [
        ("gpt-5", {}, "sk-oai", None),
        ("claude-x", {}, "sk-ant", None),
        ("gpt-5", {"api_key_env": "ROUTER_KEY"}, "sk-router", None),
        (
            "openai:x",
            {"base_url": _ELSEWHERE, "api_key_env": "ROUTER_KEY"},
            "sk-router",
            _ELSEWHERE,
        ),
        # A key goes to nobody but the provider it is for.
        ("claude-x", {"base_url": _ELSEWHERE, "api_key_env": "ROUTER_KEY"}, "sk-ant", None),
        ("claude-x", {"api_key_env": "ROUTER_KEY", "owner": "openai"}, "sk-ant", None),
        ("gpt-5", {"api_key_env": "ROUTER_KEY", "owner": "anthropic"}, "sk-oai", None),
        ("gpt-5", {"base_url": _ELSEWHERE, "owner": "anthropic"}, "sk-oai", None),
        ("claude-x", {"base_url": _ELSEWHERE, "owner": "anthropic"}, "sk-ant", _ELSEWHERE),
    ],
)
def test_a_key_goes_to_its_provider_only(
    seen: type[Seen], spec: str, settings: dict[str, str], key: str, url: str | None
) -> None:
    """Whatever else is chosen beside the configured model."""
    given = ModelSettings(environ=_KEYS, **settings)  # type: ignore[arg-type]
    model_choice.build(ModelChoice(spec, ""), given)
    assert (seen.given["api_key"], seen.given["base_url"]) == (key, url)


def test_a_server_of_ones_own_needs_no_key(seen: type[Seen]) -> None:
    """And is not sent OpenAI's unless that is all there is."""
    model_choice.build(
        ModelChoice("openai:x", ""), ModelSettings(environ={}, base_url="http://localhost:1/v1")
    )
    assert seen.given["api_key"] == "none"


def test_addresses_come_from_the_environment_too(seen: type[Seen]) -> None:
    """As the SDKs read them; what is configured comes first."""
    environ = {"ANTHROPIC_BASE_URL": "http://a", "OPENAI_BASE_URL": "http://o", **_KEYS}
    for spec, url in (("claude-x", "http://a"), ("openai:x", "http://o")):
        model_choice.build(ModelChoice(spec, ""), ModelSettings(environ=environ))
        assert seen.given["base_url"] == url
    model_choice.build(
        ModelChoice("openai:x", ""), ModelSettings(environ=environ, base_url=_ELSEWHERE)
    )
    assert seen.given["base_url"] == _ELSEWHERE


# --------------------------------------------------------------------------------------- looking


def test_a_survey_says_what_is_ready(data_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the others need; files that lie there are found."""
    data_home.mkdir()
    (data_home / "mine.gguf").write_bytes(made({}, {}))
    monkeypatch.setattr(weights, "find", lambda: None)
    found = {one.spec: one for one in model_choice.list_models(ModelSettings(environ=_ANTHROPIC))}
    assert list(found) == [
        "local",
        f"local:{data_home / 'mine.gguf'}",
        f"anthropic:{DEFAULTS['anthropic']}",
        f"openai:{DEFAULTS['openai']}",
    ]
    assert [one.ready for one in found.values()] == [False, True, True, False]
    assert found[f"openai:{DEFAULTS['openai']}"].needs == ("set OPENAI_API_KEY",)


def test_a_survey_has_the_one_that_is_chosen() -> None:
    """Once, whether it is one of the usual ones or not."""
    for also in ("local", "openai:gpt-4o", f"openai:{DEFAULTS['openai']}"):
        specs = [one.spec for one in model_choice.list_models(ModelSettings(environ={}), also)]
        assert specs.count(also) == 1


def test_a_survey_names_another_server() -> None:
    """It has models of its own."""
    settings = ModelSettings(environ={}, base_url="http://localhost:11434/v1")
    [last] = [one for one in model_choice.list_models(settings) if one.spec == "openai"]
    assert last.about == "whatever localhost:11434 has"
    assert last.needs == ("say which of that server's models: openai:NAME",)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://user:hunter2@localhost:11434/v1", "localhost:11434"),
        ("https://hunter2@example.com/v1", "example.com"),
        ("https://us@er:hunter2@example.com:8443/v1?key=hunter2#hunter2", "example.com:8443"),
        ("http://user:hunter2@[::1]:8080/hunter2", "[::1]:8080"),
        ("//user:hunter2@example.com", "example.com"),
        ("user:hunter2@example.com", "it"),
        ("https://user:hunter2@", "it"),
    ],
)
def test_a_survey_tells_no_password(url: str, named: str) -> None:
    """One in the environment's address is shown to nobody: only the server is named."""
    found = model_choice.list_models(
        ModelSettings(environ={"OPENAI_BASE_URL": url}), "openai:gpt-5"
    )
    assert "hunter2" not in str(found)
    assert f"whatever {named} has" in [one.about for one in found]


def test_what_was_built_is_a_model(tmp_path: Path) -> None:
    """A local one, for a file."""
    path = tmp_path / "some.gguf"
    path.write_bytes(made({}, {}))
    assert isinstance(
        model_choice.build(ModelChoice(str(path), ""), ModelSettings(environ={})), LocalModel
    )
