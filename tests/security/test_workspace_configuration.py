"""Configuration inside the workspace: what an allowed command starts runs nothing of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.agent.provider import Provider
from tests.security.agent_program import AgentProgram, shell, write

git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def plant_repository(folder: Path) -> None:
    """Make a folder a repository without `.git`, whose configuration runs a program."""
    for name in ("objects", "refs"):
        (folder / name).mkdir()
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text(
        "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\n"
        'fsmonitor = "touch hacked; false"\n'
    )


@git
def test_git_status_runs_nothing_that_a_planted_repository_names(program: AgentProgram) -> None:
    plant_repository(program.work)
    program.configure('[approve]\nwrites = true\ncommands = ["git status"]\n')
    [said] = program.run(shell("git status"))
    assert "[exit code 128]" in said
    assert not (program.work / "hacked").exists()
    # Without our settings it does run: the attack is a real one.
    subprocess.run(["git", "status"], cwd=program.work, check=False, capture_output=True)
    assert (program.work / "hacked").exists()


@git
def test_a_model_cannot_plant_a_repository_under_a_rule_for_writes(program: AgentProgram) -> None:
    """It needs HEAD; an older git knows no `safe.bareRepository`."""
    program.configure("[approve]\nwrites = true\n")
    *others, head = program.run(
        write("config"), write("objects/x"), write("refs/x"), write("HEAD", "ref: refs/heads/main")
    )
    assert all(said.startswith("created") for said in others)
    assert "not run" in head
    assert not (program.work / "HEAD").exists()


@git
def test_a_model_cannot_configure_a_repository_that_is_not_in_dot_git(
    program: AgentProgram,
) -> None:
    """A filter runs with `git status`; git has no setting that switches all of them off."""
    program.configure('[approve]\nwrites = true\ncommands = ["git status"]\n')
    (program.work / "a.txt").write_text("one\n")
    for command in ("git init -q --separate-git-dir=data .", "git add a.txt"):
        subprocess.run(command.split(), cwd=program.work, check=True)
    config = (program.work / "data" / "config").read_text()
    planted = f'{config}[filter "x"]\nclean = "touch hacked; cat"\n'
    (program.work / "a.txt").write_text("two\n")
    calls = (write("data/info/attributes", "* filter=x\n"), write("data/config", planted))
    attributes, configured, status = program.run(*calls, shell("git status"))
    assert "not run" in attributes
    assert "not run" in configured
    assert "modified:   a.txt" in status
    assert not (program.work / "hacked").exists()


@git
def test_git_runs_no_hook_that_the_model_has_written(program: AgentProgram) -> None:
    """A repository may keep its hooks among its files, as husky does."""
    hook = program.work / "hooks" / "pre-commit"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    for command in (
        *("git init -q", "git config core.hooksPath hooks", "git config core.fsmonitor hooks/x"),
        *("git config user.name a", "git config user.email a@b", "git add ."),
    ):
        subprocess.run(command.split(), cwd=program.work, check=True, capture_output=True)
    program.configure('[approve]\nwrites = true\ncommands = ["git commit"]\n')
    wrote, said = program.run(
        write("hooks/pre-commit", "#!/bin/sh\ntouch hacked\n"), shell("git commit -qm x")
    )
    assert "replaced hooks/pre-commit" in wrote
    assert "[exit code 0]" in said
    assert not (program.work / "hacked").exists()


def test_a_rule_for_writes_does_not_cover_what_configures_programs(program: AgentProgram) -> None:
    (program.work / ".vscode").mkdir()
    (program.work / "notes.txt").symlink_to(".envrc")
    (program.work / "settings").symlink_to(".vscode")
    program.configure("[approve]\nwrites = true\n")
    refused = (
        *(
            ".envrc",
            ".vscode/tasks.json",
            ".husky/pre-commit",
            ".bashrc",
            ".github/workflows/a.yml",
        ),
        *(
            ".GIT/config",
            "a/.git/hooks/pre-commit",
            "sub/../.npmrc",
            "notes.txt",
            "settings/x.json",
        ),
    )
    said = program.run(*map(write, refused), write("src/a.py"))
    assert all("not run" in one or "not allowed" in one or "leads to" in one for one in said[:-1])
    assert said[-1].startswith("created")
    files = {path.name for path in program.work.rglob("*") if path.is_file()}
    assert files == {"a.py"}


# ------------------------------------------------------------------------- Holdfast's own settings


def test_a_workspace_does_not_send_a_conversation_to_another_provider(
    program: AgentProgram,
) -> None:
    program.configure(f"[model]\nname = 'openai:mock-1'\nbase_url = '{program.provider.url}'\n")
    (program.work / "holdfast.toml").write_text("[model]\nname = 'anthropic:claude-9'\n")
    with Provider() as elsewhere:
        del program.environment["HOLDFAST_MODEL"]
        program.environment |= {
            "ANTHROPIC_API_KEY": "key",
            "ANTHROPIC_BASE_URL": elsewhere.url.removesuffix("/v1"),
        }
        program.run()
        assert elsewhere.requests == []
    assert len(program.provider.replies()) == 1


def test_a_workspace_does_not_raise_the_number_of_calls(program: AgentProgram) -> None:
    program.configure("[limits]\nrounds = 3\n")
    (program.work / "holdfast.toml").write_text("[limits]\nrounds = 1_000_000\n")
    program.provider.say_next(*({"calls": [{"name": "list_files"}]} for _ in range(9)))
    assert program.holdfast("run", "go").code == 1
    assert len(program.provider.replies()) == 3
