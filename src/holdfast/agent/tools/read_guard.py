"""Which reads need the user's consent: of secrets, and of a whole home directory.

What a tool reads is sent to the model's provider. So the user is asked before a tool reads

- what a well-known name says is secret: keys, credentials, environments, histories of shells
- what belongs to this program: its stores, its configuration, its state
- anything at all, if the workspace is the user's home directory or contains it

A name counts as a file system may treat it (`fold_name`), and both as it was given and as it is
behind links. Where many files are read at once, secret ones are left out and counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from holdfast.agent.tools.protocol import Ask
from holdfast.agent.tools.workspace import Workspace, WorkspacePath, fold_name
from holdfast.values import ToolCall

# The last names of a path; * stands for any part of one name.
_SECRET_FOLDERS: Final = (
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".config/op",
    ".gnupg",
    ".local/share/keyrings",
    ".oci",
    ".password-store",
    ".ssh",
)
_SECRET_FILES: Final = (
    "*.jks",
    "*.kdbx",
    "*.key",
    "*.keystore",
    "*.p12",
    "*.pem",
    "*.pfx",
    "*.ppk",
    ".*_history",
    ".cargo/credentials*",
    ".composer/auth.json",
    ".docker/config.json",
    ".dockercfg",
    ".env",
    ".env.*",
    ".envrc",
    ".gem/credentials",
    ".git-credentials",
    "*.git/config",
    ".git/modules/*/config",
    ".htpasswd",
    ".kube/config",
    ".m2/settings.xml",
    ".my.cnf",
    ".netrc",
    ".npmrc",
    ".pgpass",
    ".pypirc",
    ".terraformrc",
    ".vault-token",
    "_netrc",
    "application_default_credentials.json",
    "etc/*shadow*",
    "fish_history",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "id_rsa*",
    "kubeconfig",
    "proc/*/environ",
    "proc/*/task/*/environ",
)
_NO_SECRETS: Final = ("*.pub", ".env.dist", ".env.example", ".env.sample", ".env.template")


def _ending_in(patterns: Iterable[str], end: str) -> re.Pattern[str]:
    written = "|".join(re.escape(pattern).replace(r"\*", "[^/]*") for pattern in patterns)
    return re.compile(f"/(?:{written}){end}")


_IN_SECRET_FOLDER: Final = _ending_in(_SECRET_FOLDERS, r"(?:/|\Z)")
_IS_SECRET_FILE: Final = _ending_in(_SECRET_FILES, r"\Z")
_IS_NO_SECRET: Final = _ending_in(_NO_SECRETS, r"\Z")


def is_secret(names: Iterable[str]) -> bool:
    """True if the names of a path say that it, or a folder that it is in, holds secrets."""
    path = "/" + "/".join(map(fold_name, names))
    if _IN_SECRET_FOLDER.search(path) is not None:
        return True
    return _IS_SECRET_FILE.search(path) is not None and _IS_NO_SECRET.search(path) is None


class ReadGuard:
    """Which reads of a workspace need consent."""

    def __init__(self, space: Workspace, own_files: Collection[str] = ()) -> None:
        """`own_files` are this program's files and folders, and any that are named after them.

        Beside a store `agent.db` are `agent.db-wal` and `agent.db.before-2`.
        """
        self._space = space
        self._own_files = tuple(os.path.realpath(path) for path in own_files)
        self._is_broad = space.root == "/" or space.contains_home()

    def ask(self, call: ToolCall, path: WorkspacePath, given: str) -> Ask | None:
        """Return what to ask before a file or folder is read, named `given`; `None` for nothing."""
        if self.is_secret(path) or is_secret(Path(os.path.normpath(given)).parts):
            return Ask(call, f"read {path.display}, which may hold secrets", sensitive=True)
        if self._is_broad:
            return Ask(call, f"read {path.display}\nin {self._space.root}, where your home is")
        return None

    def is_secret(self, path: WorkspacePath) -> bool:
        """True if a file or folder may hold secrets, by its name or as one of this program's."""
        absolute = self._space.absolute_path(path)
        return is_secret(Path(absolute).parts[1:]) or any(
            absolute == own or absolute.startswith((f"{own}/", f"{own}-", f"{own}."))
            for own in self._own_files
        )
