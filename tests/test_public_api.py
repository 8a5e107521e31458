"""The public API: exactly the listed names, matching twins, no heavy imports."""

import asyncio
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast
from holdfast import aio, errors, values
from holdfast.testing import BackendConformance
from holdfast.values import SessionChanges

NAMES = [
    "AsyncDraft",
    "AsyncSession",
    "AsyncStore",
    "AsyncTurn",
    "BranchChanged",
    "Draft",
    "File",
    "Goal",
    "Head",
    "HoldfastError",
    "Message",
    "Raw",
    "Record",
    "Session",
    "Store",
    "Text",
    "Thinking",
    "ToolCall",
    "ToolResult",
    "Turn",
    "Usage",
    "errors",
    "open",
    "open_async",
]
TWINS = [
    (holdfast.Store, holdfast.AsyncStore),
    (holdfast.Session, holdfast.AsyncSession),
    (holdfast.Turn, holdfast.AsyncTurn),
    (holdfast.Draft, holdfast.AsyncDraft),
]
ERRORS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, Exception)
]


# ------------------------------------------------------------------------------------- the names


def test_the_exported_names_are_exactly_these() -> None:
    """A new name is a decision, and is made here too."""
    assert sorted(holdfast.__all__) == sorted(NAMES)
    assert list(holdfast.__all__) == sorted(holdfast.__all__)


def test_every_exported_name_is_there() -> None:
    """Also those that are loaded on first access."""
    for name in NAMES:
        assert getattr(holdfast, name) is not None
    with pytest.raises(AttributeError, match="Sesion"):
        getattr(holdfast, "Sesion")  # noqa: B009 - asking for it is the test


def test_nothing_public_is_left_unlisted() -> None:
    """What `dir` shows beyond the list are modules that were imported on the way."""
    extra = {name for name in vars(holdfast) if not name.startswith("_")} - set(NAMES)
    own = {name for name in extra if not isinstance(getattr(holdfast, name), ModuleType)}
    assert own <= {"annotations", "TYPE_CHECKING"}


def test_the_version_is_the_packages() -> None:
    """The version is defined once."""
    from importlib.metadata import version  # noqa: PLC0415 - slow, and only needed here

    assert holdfast.__version__ == version("holdfast")


# ------------------------------------------------------------------------------------- the errors


def _drawn() -> dict[str, str | None]:
    """Read the tree in the docstring of `errors`: each name with the one above it."""
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?:$|\s{2,})", line)
        if found is None or (not found[1] and above):
            continue
        depth, name = len(found[1]), found[2]
        if not found[1] and name != "HoldfastError":
            continue
        while above and above[-1][0] >= depth:
            above.pop()
        parents[name] = above[-1][1] if above else None
        above.append((depth, name))
    return parents


def test_the_errors_are_the_tree_that_is_drawn() -> None:
    """Every class is in the drawing, below the one it inherits from."""
    there = {
        error.__name__: None if error is errors.HoldfastError else error.__bases__[0].__name__
        for error in ERRORS
    }
    assert _drawn() == there


def test_one_root() -> None:
    """`except HoldfastError` catches all of them, and it is no `ValueError` or `KeyError`."""
    for error in ERRORS:
        assert error.__mro__[-4:] == (errors.HoldfastError, Exception, BaseException, object)
        assert [base for base in error.__mro__ if base.__module__ == "builtins"] == [
            Exception,
            BaseException,
            object,
        ]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_says_what_it_means(error: type[Exception]) -> None:
    """In its own docstring, one sentence at least."""
    own = vars(error).get("__doc__")
    assert own
    assert own.strip().endswith(".")


def test_no_error_carries_what_was_said() -> None:
    """Messages of errors may be logged; a conversation may not."""
    with holdfast.open("memory:") as store:
        session = store.session("k")
        secret = "the secret"  # noqa: S105 - it is what a user said
        message = holdfast.Message.user(secret, id="mine")
        session.append(message)
        for other in (
            [holdfast.Message.user(secret + "!", id="mine")],
            [holdfast.Message.user(secret, metadata={secret: {1, 2}})],  # type: ignore[dict-item]
            [holdfast.Message.user("x", metadata={"k": {1: secret}})],  # type: ignore[dict-item]
            [holdfast.Message.user([secret, secret.encode()])],  # type: ignore[list-item]
            [holdfast.Message.user(secret, cost=secret)],  # type: ignore[arg-type]
            [holdfast.Message.user(secret, usage=holdfast.Usage(secret))],  # type: ignore[arg-type]
        ):
            with pytest.raises(holdfast.HoldfastError) as refused:
                session.append(holdfast.Message.user(secret), *other)
            assert secret not in str(refused.value)


# -------------------------------------------------------------------------------------- the twins


def _methods(kind: type) -> dict[str, Any]:
    """What users call: public methods and properties, and the ways in and out of a block."""
    found = {n: v for n, v in vars(kind).items() if not n.startswith("_") and callable(v)}
    found |= {n: v for n, v in vars(kind).items() if isinstance(v, property)}
    return found


def _signature(function: Callable[..., Any]) -> list[tuple[str, str, object, str]]:
    """Parameters with kinds, defaults and annotations, `self` left out."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return [(p.name, p.kind.name, p.default, _as_sync(str(p.annotation))) for p in parameters]


def _function(method: Any) -> Callable[..., Any]:  # noqa: ANN401 - a method or a property
    if isinstance(method, property):
        assert method.fget is not None
        return method.fget
    function: Callable[..., Any] = method
    return function


def _as_sync(annotation: str) -> str:
    """Return a type as the sync side spells it, where no method hides the name `list`."""
    return annotation.replace("Async", "").replace("builtins.", "")


@pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_twins_have_the_same_methods(sync: type, twin: type) -> None:
    """Neither side has a method that the other lacks."""
    assert sorted(_methods(sync)) == sorted(_methods(twin))
    assert hasattr(sync, "__enter__") == hasattr(twin, "__aenter__")


@pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_twins_take_and_give_the_same(sync: type, twin: type) -> None:
    """Names, order, kinds, defaults and types of parameters, what is given; but for Async."""
    for name, method in _methods(sync).items():
        other = _methods(twin)[name]
        assert isinstance(method, property) == isinstance(other, property), name
        both = [_function(m) for m in (method, other)]
        assert _signature(both[0]) == _signature(both[1]), name
        gives = [str(inspect.signature(m).return_annotation) for m in both]
        assert _as_sync(gives[0]) == _as_sync(gives[1]), name


@pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_what_waits_is_awaited(sync: type, twin: type) -> None:
    """Only what opens a block, follows, iterates, or never calls the store is not awaited."""
    at_once = {
        name
        for name, method in _methods(twin).items()
        if not isinstance(method, property) and not inspect.iscoroutinefunction(method)
    }
    assert at_once <= {"turn", "stream", "follow", "iter_messages"}
    assert not any(inspect.iscoroutinefunction(m) for m in _methods(sync).values() if callable(m))


@pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_twins_have_the_same_attributes(sync: type, twin: type) -> None:
    """Public attributes that the constructor sets."""
    pattern = re.compile(r"self\.([a-z]\w*)\s*(?::[^=]+)?=[^=]")
    names = [
        set(pattern.findall(inspect.getsource(kind.__init__)))  # type: ignore[misc]
        for kind in (sync, twin)
    ]
    assert names[0] - {"runtime", "number"} == names[1]


OPTIONS: list[tuple[Callable[..., Any], type]] = [
    (holdfast.Store.session, values.SessionFields),
    (holdfast.Store.create, values.SessionFields),
    (holdfast.Store.sessions, values.ListOptions),
    (holdfast.Store.search, values.SearchOptions),
    (holdfast.Store.retention, values.RetentionOptions),
    (holdfast.Session.fork, values.ForkFields),
    (holdfast.Session.update, SessionChanges),
]


@pytest.mark.parametrize(("method", "options"), OPTIONS, ids=lambda one: one.__name__)
def test_every_option_is_in_the_help_of_its_method(
    method: Callable[..., Any], options: type
) -> None:
    """The signature has only the name of the set; the docstring names what is in it."""
    *_, last = inspect.signature(method).parameters.values()
    assert last.kind is inspect.Parameter.VAR_KEYWORD
    assert last.annotation.removesuffix("]").endswith(options.__name__)
    words = set(re.findall(r"\w+", method.__doc__ or ""))
    assert options.__annotations__.keys() <= words


@pytest.mark.parametrize("method", ["session", "create", "sessions", "search", "retention", "fork"])
def test_an_argument_that_there_is_not_is_a_type_error(method: str) -> None:
    """As Python raises it, by both twins, and before anything is read or written."""
    given = ["k"] if method in {"session", "search"} else []
    with holdfast.open("memory:") as store:
        of: Any = store.session("k") if method == "fork" else store
        with pytest.raises(TypeError, match=rf"{method}\(\) got an unexpected .* 'colour'"):
            getattr(of, method)(*given, colour="red")
        twin = aio.AsyncSession(of) if method == "fork" else aio.AsyncStore(of)
        with pytest.raises(TypeError, match=rf"{method}\(\) got an unexpected .* 'colour'"):
            asyncio.run(getattr(twin, method)(*given, colour="red"))


def test_a_fork_inherits_what_cannot_be_passed() -> None:
    """Scope and agent are the parent's: passing one is an error, not ignored."""
    with holdfast.open("memory:") as store, pytest.raises(TypeError, match="'scope'"):
        store.session("k").fork(scope="another")  # type: ignore[call-arg]


def test_both_doors_open_alike() -> None:
    """`open` and `open_async` take the same."""
    sync, twin = inspect.signature(holdfast.open), inspect.signature(holdfast.open_async)
    assert [(p.name, p.kind, p.default) for p in sync.parameters.values()] == [
        (p.name, p.kind, p.default) for p in twin.parameters.values()
    ]


# -------------------------------------------------------------------------- the conformance suite


def test_no_two_groups_of_the_conformance_suite_share_a_name() -> None:
    """The groups are one class in the end: of two tests with one name only one would run."""
    named: dict[str, list[str]] = {}
    for group in BackendConformance.__bases__:
        for name in vars(group):
            if not name.startswith("__"):
                named.setdefault(name, []).append(group.__name__)
    assert {name: groups for name, groups in named.items() if len(groups) > 1} == {}


# ------------------------------------------------------------------------------------ the imports


def _modules_of(code: str, *args: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *args], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def _loaded_by(code: str) -> set[str]:
    return {name.partition(".")[0] for name in _modules_of(code)}


HEAVY = {
    "asyncio",
    "click",
    "markdown_it",
    "prompt_toolkit",
    "rich",
    "stamina",
    "http",
    "email",
    "ssl",
    "sqlite3",
    "starlette",
    "uvicorn",
    "jinja2",
    "psycopg",
    "openai",
    "anthropic",
    "pytest",
    "hypothesis",
    "multiprocessing",
    "subprocess",
    "unittest",
    "ctypes",
}


def test_importing_pulls_in_nothing_heavy() -> None:
    """No event loop, no command line, no web, no test tools."""
    assert _loaded_by("import holdfast") & HEAVY == set()


def test_a_store_in_memory_needs_no_database() -> None:
    """A backend is loaded when its URL is opened."""
    code = "import holdfast\nholdfast.open('memory:').session('k').head()"
    assert _loaded_by(code) & {"apsw", "asyncio"} == set()


# What takes long to import, and what few programs call: a backup, an erasure, a repair.
_LATER = {
    "importlib.resources",
    "random",
    "signal",
    "tempfile",
    "zipfile",
    "holdfast.erasure",
    "holdfast.operations.deletion",
    "holdfast.operations.erase",
    "holdfast.operations.retention",
    "holdfast.search.engine",
    "holdfast.storage.sqlite.backup",
    "holdfast.storage.sqlite.new_file",
    "holdfast.storage.sqlite.repair",
    "holdfast.storage.sqlite.residue_scan",
    "holdfast.storage.sqlite.wipe",
    "holdfast.transfer.copy",
}
_RESUME = """
import holdfast
with holdfast.open(sys.argv[1]) as store:
    session = store.session("k")
    assert [message.text for message in session.messages(limit=50)] == ["hello"]
    assert [found.id for found in store.sessions()] == [session.id]
    session.append(holdfast.Message.user("hello"))
"""


def test_a_program_that_resumes_a_session_imports_only_what_it_calls(tmp_path: Path) -> None:
    """It opens a store, reads, lists and appends, and need not wait for anything else."""
    with holdfast.open(tmp_path / "a.db") as store:
        store.session("k").append(holdfast.Message.user("hello"))
    loaded = _modules_of(_RESUME, str(tmp_path / "a.db"))
    assert {"holdfast", "holdfast.storage.sqlite.backend"} <= loaded
    assert loaded & _LATER == set()


def test_a_package_in_an_archive_reads_its_statements(tmp_path: Path) -> None:
    """The files of SQL are read from wherever the package is."""
    archive = shutil.make_archive(
        str(tmp_path / "archive"), "zip", Path(holdfast.__file__).parents[1], "holdfast"
    )
    code = """
sys.meta_path[:] = [found for found in sys.meta_path if "editable" not in repr(found).lower()]
sys.path.insert(0, sys.argv[1])
import holdfast
assert sys.argv[1] in holdfast.__file__
with holdfast.open(sys.argv[2]) as store:
    store.session("k").append(holdfast.Message.user("hello"))
"""
    assert "importlib.resources" in _modules_of(code, archive, str(tmp_path / "a.db"))


def test_the_async_side_is_imported_on_access() -> None:
    """Importing it loads the event loop."""
    assert "asyncio" in _loaded_by("import holdfast\nholdfast.open_async")


# --------------------------------------------------------------------------------- the docstrings


def _public(module: ModuleType) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith("holdfast")
    ]


@pytest.mark.parametrize("module", [holdfast, errors, values, aio], ids=lambda m: m.__name__)
def test_everything_public_says_what_it_is(module: ModuleType) -> None:
    """Modules, classes, functions, methods and properties."""
    assert module.__doc__
    silent = [name for name, value in _public(module) if not value.__doc__]
    silent += [
        f"{name}.{method}"
        for name, value in _public(module)
        if inspect.isclass(value)
        for method, function in vars(value).items()
        if (inspect.isfunction(function) or isinstance(function, property | classmethod))
        and not method.startswith("_")
        and not function.__doc__
    ]
    assert silent == []


@pytest.mark.parametrize("name", [n for n in NAMES if n != "errors"])
def test_every_exported_name_has_words(name: str) -> None:
    """Its own docstring, not an inherited one."""
    value = getattr(holdfast, name)
    assert vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
