"""Which names are secret, where every read is asked for, and what is never asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import ToolCall
from holdfast.agent.tools.protocol import Ask
from holdfast.agent.tools.read_guard import ReadGuard, is_secret
from holdfast.agent.tools.workspace import Workspace

_CALL = ToolCall("call_1", "read_file", {})


@pytest.mark.parametrize(
    "path",
    [
        *(
            ".env",
            "a/.env",
            ".env.local",
            ".Env",
            ".env.",
            ".envrc",
            ".e\u200bnv",
            ".env ",
            "\uff0eenv",
        ),
        *(".ssh", ".ssh/config", "home/.SSH/x/y", ".aws/config", ".gnupg/x", ".azure/x"),
        *(".config/gcloud/x", ".config/gh/hosts.yml", ".password-store/bank.gpg"),
        *("a.pem", "A.PEM", "tls.key", "id_rsa", "id_rsa.old", "id_ed25519", "x.p12", "x.kdbx"),
        *(".netrc", "_netrc", ".pgpass", ".npmrc", ".pypirc", ".git-credentials", ".htpasswd"),
        *(".docker/config.json", ".kube/config", ".cargo/credentials.toml", ".git/config"),
        *("x.git/config", ".git/modules/x/config", "proc/1/task/2/environ"),
        *(".bash_history", ".psql_history", "etc/shadow", "proc/1/environ", "kubeconfig"),
    ],
)
def test_a_secret_name_is_recognised(path: str) -> None:
    assert is_secret(path.split("/"))


@pytest.mark.parametrize(
    "path",
    [
        *("a.py", "env", "environment", ".env.example", "a/.env.sample", ".env.d/x", "config"),
        *("id_rsa.pub", "ssh/config", ".sshx", "docker/config.json", "keys.py", "a.pem.md"),
        *("history", "chat_history.py", ".config/other", ".github/x", ".gitignore", "."),
    ],
)
def test_other_names_are_not(path: str) -> None:
    assert not is_secret(path.split("/"))


def _ask(root: Path, path: str, *own_files: Path) -> Ask | None:
    space = Workspace(str(root))
    guard = ReadGuard(space, [str(file) for file in own_files])
    return guard.ask(_CALL, space.resolve(path), path)


def test_every_read_is_asked_for_at_home_and_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, project = tmp_path / "home", tmp_path / "home" / "project"
    project.mkdir(parents=True)
    (tmp_path / "homework").mkdir()
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "alias").symlink_to(home)
    for root in (home, tmp_path / "alias", tmp_path, Path("/")):
        asked = _ask(root, "x")
        assert asked is not None
        assert not asked.sensitive
    assert _ask(project, "x") is None
    assert _ask(tmp_path / "homework", "x") is None
    secret = _ask(home, ".env")
    assert secret is not None
    assert secret.sensitive


def test_a_name_counts_as_it_is_given_and_as_it_is(tmp_path: Path) -> None:
    (tmp_path / ".env").touch()
    (tmp_path / "plain").touch()
    (tmp_path / "innocent").symlink_to(".env")
    (tmp_path / "tls.key").symlink_to("plain")
    assert _ask(tmp_path, "innocent") is not None
    assert _ask(tmp_path, "tls.key") is not None
    assert _ask(tmp_path, "plain") is None


def test_a_folder_that_is_secret_makes_all_in_it_secret(tmp_path: Path) -> None:
    root = tmp_path / ".ssh" / "deep"
    root.mkdir(parents=True)
    assert _ask(root, "plain") is not None


def test_what_the_program_keeps_and_what_lies_beside_it_is_secret(tmp_path: Path) -> None:
    own = (tmp_path / "agent.db", tmp_path / "state")
    for path in ("agent.db", "agent.db-wal", "agent.db.before-2", "state", "state/x/y"):
        assert _ask(tmp_path, path, *own) is not None
    for path in ("agent.py", "agent", "statement"):
        assert _ask(tmp_path, path, *own) is None
