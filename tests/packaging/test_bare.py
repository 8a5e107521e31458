"""Without extras: the library works whole, and what needs more says what to install."""

import sys
from pathlib import Path

import pytest

from holdfast.cli import _PACKAGES
from tests.packaging.environments import ROOT, Environment, borrow
from tools.frameworks import FRAMEWORKS

# Modules that need an extra, or pytest.
_NEED_MORE = (
    *(f"holdfast.adapters.{framework.name}" for framework in FRAMEWORKS),
    "holdfast.agent",
    "holdfast.cli",
    "holdfast.storage.postgres",
    "holdfast.testing.conformance",
    "holdfast.testing.scripted_model",
)
_IMPORT_ALL = f"""
import importlib, pkgutil, holdfast
def names(package):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.name.startswith({_NEED_MORE}) and module.name != "holdfast.__main__":
            yield module.name
            if module.ispkg:
                yield from names(importlib.import_module(module.name))
print(len([importlib.import_module(name) for name in names(holdfast)]) > 150)
"""
_HINT = "holdfast: the command needs the package {}: run pip install 'holdfast[cli]'\n"
# What needs an extra, and what is then said.
_REFUSALS = {
    "import holdfast.agent": (
        "ModuleNotFoundError: holdfast.agent needs the package stamina: "
        "run pip install 'holdfast[agent]'"
    ),
    "import holdfast; holdfast.open('postgresql://host/database')": (
        "holdfast.errors.UnknownBackend: PostgreSQL needs the package psycopg: "
        "run pip install 'holdfast[postgres]'"
    ),
}
# The vocabulary, and what every store promises, in memory and in a file.
_TESTS = (
    "tests/test_vocabulary.py",
    "tests/storage/test_conformance.py::TestMemory",
    "tests/storage/test_conformance.py::TestSQLite",
)
# pytest and hypothesis, and what they need.
_TOOLS = (
    *("pytest", "pytest-timeout", "iniconfig", "packaging", "pluggy", "pygments"),
    *("hypothesis", "sortedcontainers"),
)
_CHOSEN = "vocabulary or append or search or fork"


def test_every_module_of_the_library_is_imported_without_extras(bare: Environment) -> None:
    assert bare.python(_IMPORT_ALL) == "True\n"


@pytest.mark.parametrize("code", _REFUSALS)
def test_what_needs_an_extra_names_it(code: str, bare: Environment) -> None:
    ran = bare.run("python", "-I", "-c", code)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == _REFUSALS[code]


@pytest.mark.parametrize("name", [framework.name for framework in FRAMEWORKS])
def test_an_adapter_without_its_framework_names_the_extra(name: str, bare: Environment) -> None:
    ran = bare.run("python", "-I", "-c", f"import holdfast.adapters.{name}")
    extra = name.replace("_", "-")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].endswith(f"pip install 'holdfast[{extra}]'")


def test_unknown_tokenizers_are_estimated(bare: Environment) -> None:
    code = "from holdfast.windows.tokenizers import tokenizer_for as t; print(t('gpt-4o'))"
    assert bare.python(code) == "None\n"


@pytest.mark.parametrize("command", [["holdfast"], ["python", "-m", "holdfast"]])
def test_the_command_says_what_to_install_in_one_line(
    command: list[str], bare: Environment
) -> None:
    ran = bare.run(*command, "ls")
    assert (ran.returncode, ran.stdout, ran.stderr) == (6, "", _HINT.format("click"))
    ran = bare.run(*command, "--version")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("package", _PACKAGES)
def test_the_command_misses_each_of_its_packages(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other programs install some of them: then only the rest is missing."""
    from holdfast.cli import main  # noqa: PLC0415 - as the installed script does

    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "argv", ["holdfast", "ls"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (6, _HINT.format(package))


def test_the_library_s_own_tests_pass_without_extras(bare: Environment, tmp_path: Path) -> None:
    borrow(tmp_path, *_TOOLS)
    asked = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", _CHOSEN, *_TESTS]
    ran = bare.run("python", *asked, folder=ROOT, PYTHONPATH=str(tmp_path))
    assert ran.returncode == 0, ran.stdout
