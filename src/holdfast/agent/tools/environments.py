"""What a child process is told of our environment: what it needs to run, and no secret.

Variables are passed on by name; keys and tokens have other names, whatever they are. Of those that
may hold a password (a proxy's address) only the ones without are passed on. Folders in `PATH` that
are not absolute are left out: a program in the workspace must not pass for `ls`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

_PASSED_ON: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER"}
    # Where programs find their parts.
    | {"CARGO_HOME", "CONDA_PREFIX", "GOPATH", "GOROOT", "JAVA_HOME", "NVM_DIR", "PYENV_ROOT"}
    | {"RUSTUP_HOME", "SSL_CERT_DIR", "SSL_CERT_FILE", "VIRTUAL_ENV"}
)
_PROXIES: Final = frozenset({"all_proxy", "ftp_proxy", "http_proxy", "https_proxy", "no_proxy"})
_SET: Final = {
    # Nobody is there to answer, to page or to look at colours.
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "TERM": "dumb",
}
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


def scrubbed(environment: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """Return what a child may see of this environment; `keep` names more that it may."""
    passed = {
        name: value
        for name, value in environment.items()
        if name in _PASSED_ON or name in keep or name.startswith("LC_") or _is_open(name, value)
    }
    return {**passed, **_SET, "PATH": _path(environment.get("PATH", ""))}


def _is_open(name: str, value: str) -> bool:
    """Return whether this is a proxy's address without a password in it."""
    return name.lower() in _PROXIES and "@" not in value


def _path(given: str) -> str:
    return ":".join(folder for folder in given.split(":") if folder.startswith("/")) or _PATH
