"""A mock provider, by others and as a process: aimock, which speaks OpenAI's and Anthropic's API.

It answers by fixtures: what a request must look like, and what is said then. The first fixture
that fits wins, one with a `sequenceIndex` only at its turn. Its journal has every request.

    aimock.script(
        fails(429, "slow down", match={"userMessage": "hi", "sequenceIndex": 0}, retryAfter=1),
        says("Hello!", match={"userMessage": "hi"}),
    )

`make test` installs it where npm is; without it the tests that ask for it are skipped.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from holdfast.values import JSON

_PROGRAM = Path(sys.prefix, "aimock/node_modules/@copilotkit/aimock/dist/cli.js")
_LISTENING = "server listening on http://127.0.0.1:"
_PATIENCE = 30.0

Fixture = dict[str, JSON]


class Asked(msgspec.Struct, frozen=True):
    """A request as the journal has it: where it went, what it said, and what was answered.

    A body sent to Anthropic's API stands there in OpenAI's shape.
    """

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the window."""
        found: list[dict[str, Any]] = self.body["messages"]
        return found


def says(text: str, *, match: Mapping[str, JSON] | None = None, **options: JSON) -> Fixture:
    """A reply of text. Options of the response (`reasoning`, `usage`, `finishReason` …) and of
    the fixture (`latency` and `chunkSize`, `truncateAfterChunks`, `disconnectAfterMs`) go along.
    """
    return _fixture({"content": text}, match, options)


def calls(
    *tools: tuple[str, Mapping[str, JSON] | str],
    text: str | None = None,
    match: Mapping[str, JSON] | None = None,
    **options: JSON,
) -> Fixture:
    """A reply that calls tools: each a name and its arguments."""
    asked: list[JSON] = [
        {"name": name, "arguments": arguments if isinstance(arguments, str) else dict(arguments)}
        for name, arguments in tools
    ]
    said: Fixture = {} if text is None else {"content": text}
    return _fixture({"toolCalls": asked, **said}, match, options)


def fails(
    status: int,
    message: str = "it failed",
    *,
    match: Mapping[str, JSON] | None = None,
    type: str = "server_error",
    code: str | None = None,
    **options: JSON,
) -> Fixture:
    """An error. `retryAfter` (seconds) may go with a 429."""
    error: Fixture = {"message": message, "type": type}
    if code is not None:
        error["code"] = code
    return _fixture({"error": error, "status": status}, match, options)


_OF_THE_FIXTURE = {
    "chaos",
    "chunkSize",
    "disconnectAfterMs",
    "latency",
    "streamingProfile",
    "truncateAfterChunks",
}


def _fixture(
    response: Fixture, match: Mapping[str, JSON] | None, options: Mapping[str, JSON]
) -> Fixture:
    around = {name: value for name, value in options.items() if name in _OF_THE_FIXTURE}
    inside = {name: value for name, value in options.items() if name not in _OF_THE_FIXTURE}
    return {"match": dict(match or {}), "response": {**response, **inside}, **around}


class Aimock:
    """The running provider."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.anthropic = f"http://127.0.0.1:{port}"  # what ANTHROPIC_BASE_URL would be
        self.openai = f"{self.anthropic}/v1"  # what OPENAI_BASE_URL would be

    def script(self, *fixtures: Fixture) -> None:
        """Answer by these fixtures too, after those that were there before."""
        added = self._control("POST", "fixtures", {"fixtures": fixtures})
        assert added == {"added": len(fixtures)}, added

    def fail_next(self, status: int, message: str = "it failed") -> None:
        """Answer the next request with an error, whatever it asks."""
        self._control("POST", "error", {"status": status, "body": {"message": message}})

    def reset(self) -> None:
        """Forget all fixtures, and the journal."""
        self._control("POST", "reset")

    def journal(self) -> list[Asked]:
        """The calls of a model so far, the oldest first (once each is answered)."""
        return [
            Asked(item["path"], item["headers"], item["body"], item["response"]["status"])
            for item in cast("list[dict[str, Any]]", self._control("GET", "journal"))
            if item["body"] is not None
        ]

    def _control(self, method: str, what: str, body: object = None) -> object:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)) as connection:
            text = None if body is None else json.dumps(body)
            connection.request(method, f"/__aimock/{what}", text)
            response = connection.getresponse()
            answer: object = json.loads(response.read())
        assert response.status == 200, answer
        return answer


@pytest.fixture(scope="session")
def aimock_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    """The process, one for all tests of a worker."""
    node = shutil.which("node")
    if node is None or not _PROGRAM.exists():
        pytest.skip("aimock is not installed here: it needs npm and Node.js 20 (see the Makefile)")
    folder = tmp_path_factory.mktemp("aimock")
    folder.joinpath("none.json").write_text('{"fixtures": []}')
    with folder.joinpath("log").open("wb") as log:
        process = subprocess.Popen(
            _command(node, folder), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield Aimock(_wait_for_port(folder / "log", process))
    finally:
        process.kill()
        process.wait()


def _command(node: str, folder: Path) -> Sequence[str]:
    return [node, str(_PROGRAM), "--port", "0", "--fixtures", str(folder / "none.json")]


def _wait_for_port(log: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        told = log.read_text()
        if _LISTENING in told and told.endswith("\n"):
            return int(told.rpartition(_LISTENING)[2].split()[0])
        time.sleep(0.02)
    pytest.fail(f"aimock did not start:\n{log.read_text()}")


@pytest.fixture
def aimock(aimock_server: Aimock) -> Aimock:
    """The provider, which knows nothing yet."""
    aimock_server.reset()
    return aimock_server
