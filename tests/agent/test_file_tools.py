"""The file tools: what they show, what they change, and what the user must approve."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from holdfast.agent.tools import diff
from holdfast.agent.tools.directory_walk import Walk
from holdfast.agent.tools.file_tools import file_tools
from holdfast.agent.tools.protocol import Output
from holdfast.agent.tools.worker_thread import stoppable
from holdfast.agent.tools.workspace import Workspace, WorkspacePath
from holdfast.values import JSON
from tests.agent.tools import Desk, refusal


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "work").mkdir()
    made = Desk(file_tools(str(tmp_path / "work"), output=2_000), tmp_path / "work")
    yield made
    made.close()


@pytest.fixture
def root(desk: Desk) -> Path:
    return Path(desk.cwd)


# -------------------------------------------------------------------------------------- reading


def test_a_file_is_read_as_it_is(desk: Desk, root: Path) -> None:
    (root / "a.txt").write_bytes("one\r\ntwo\n\nfür\n".encode())
    assert desk.run("read_file", path="a.txt") == "one\r\ntwo\n\nfür\n"
    (root / "empty").write_bytes(b"")
    assert desk.run("read_file", path="empty") == "(empty is empty)"


def test_lines_are_read_from_anywhere_and_how_to_go_on_is_told(desk: Desk, root: Path) -> None:
    (root / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)))
    assert desk.run("read_file", path="a.txt", start=3, count=2) == (
        "line 3\nline 4\n[lines 3 to 4 of 10; continue with start=5]"
    )
    assert desk.run("read_file", path="a.txt", start=10) == "line 10\n[lines 10 to 10 of 10]"
    assert "only 10 lines" in desk.fail("read_file", path="a.txt", start=11)


def test_a_long_file_is_read_in_pieces_that_together_are_the_file(desk: Desk, root: Path) -> None:
    text = "\n".join(f"{n} " + "x" * (n % 90) for n in range(500))
    (root / "long.txt").write_text(text)
    read: list[str] = []
    start = 1
    while True:
        shown = desk.run("read_file", path="long.txt", start=start)
        assert len(shown) <= 2_000
        *lines, note = shown.split("\n")
        read += lines
        if "continue with" not in note:
            break
        start = int(note.partition("start=")[2].partition("]")[0])
    assert "\n".join(read) == text


def test_a_line_without_end_is_cut_and_told(desk: Desk, root: Path) -> None:
    (root / "min.js").write_text("x" * 100_000)
    shown = desk.run("read_file", path="min.js")
    assert len(shown) < 3_000
    assert "the line has 100,000 characters" in shown


def test_binary_files_are_told_and_not_dumped(desk: Desk, root: Path) -> None:
    (root / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 100)
    (root / "b.bin").write_bytes(b"abc\0def")
    (root / "latin.txt").write_bytes("für".encode("latin-1"))
    assert desk.run("read_file", path="a.png") == "a.png is not text: a PNG image, 108 bytes."
    assert "binary data, 7 bytes" in desk.run("read_file", path="b.bin")
    assert "f\ufffdr" in desk.run("read_file", path="latin.txt")
    assert "not valid UTF-8" in desk.run("read_file", path="latin.txt")


def test_nothing_outside_is_read_written_edited_listed_or_searched(desk: Desk, root: Path) -> None:
    outside = root.parent / "secret.txt"
    outside.write_text("secret")
    (root / "link").symlink_to("../secret.txt")
    for path in ("../secret.txt", str(outside), "link"):
        assert "outside" in desk.fail("read_file", path=path)
        assert "outside" in desk.fail("write_file", path=path, content="x")
        assert "outside" in desk.fail("edit_file", path=path, old="secret", new="x")
        assert "outside" in refusal(partial(desk.asks, "write_file", path=path, content=""))
    assert "outside" in desk.fail("list_files", path="..")
    assert "outside" in desk.fail("search_files", text="secret", path="..")
    assert desk.run("search_files", text="secret") == "(not found)"
    assert outside.read_text() == "secret"


# -------------------------------------------------------------------------------------- writing


def test_a_new_file_is_shown_before_it_is_written(desk: Desk, root: Path) -> None:
    asked = desk.asks("write_file", path="a/b.txt", content="one\ntwo\n")
    assert asked == "create a/b.txt\n+one\n+two"
    assert not (root / "a").exists()
    assert desk.run("write_file", path="a/b.txt", content="one\ntwo\n") == (
        "created a/b.txt (8 bytes)."
    )
    assert (root / "a/b.txt").read_text() == "one\ntwo\n"


def test_what_replaces_a_file_is_shown_as_what_changes(desk: Desk, root: Path) -> None:
    lines = [f"line {n}" for n in range(1, 21)]
    (root / "a.txt").write_text("\n".join(lines))
    lines[9] = "changed"
    asked = desk.asks("write_file", path="a.txt", content="\n".join(lines))
    assert asked == (
        "replace a.txt\n@@ line 7 @@\n line 7\n line 8\n line 9\n-line 10\n+changed\n line 11\n"
        " line 12\n line 13"
    )
    assert "replaced" in desk.run("write_file", path="a.txt", content="\n".join(lines))


def test_text_that_cannot_be_written_is_refused_before_anything_is(desk: Desk, root: Path) -> None:
    assert "cannot be written" in desk.fail("write_file", path="a", content="\ud800")
    assert not (root / "a").exists()


# -------------------------------------------------------------------------------------- editing


def test_an_edit_replaces_what_is_there_once(desk: Desk, root: Path) -> None:
    (root / "a.py").write_text("def one():\n    return 1\n\ndef two():\n    return 2\n")
    given: dict[str, JSON] = {"path": "a.py", "old": "return 2", "new": "return 3"}
    asked = desk.asks("edit_file", **given)
    assert asked is not None
    assert asked.startswith("edit a.py\n@@ line 2 @@\n     return 1\n")
    assert "-    return 2\n+    return 3" in asked
    assert (root / "a.py").read_text().endswith("return 2\n")
    assert desk.run("edit_file", **given) == "replaced 1 occurrence in a.py."
    assert (root / "a.py").read_text() == "def one():\n    return 1\n\ndef two():\n    return 3\n"


def test_an_edit_that_could_mean_several_places_says_which(desk: Desk, root: Path) -> None:
    (root / "a.txt").write_text("x\ny\nx\nx\n")
    assert "3 times in a.txt (line 1, 3, 4)" in desk.fail(
        "edit_file", path="a.txt", old="x", new="z"
    )
    said = desk.run("edit_file", path="a.txt", old="x", new="z", every="true")
    assert said == "replaced 3 occurrences in a.txt."
    assert (root / "a.txt").read_text() == "z\ny\nz\nz\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("absent", "x", "is not in a.txt"), ("", "x", "empty"), ("one", "one", "the same")],
)
def test_an_edit_that_makes_no_sense_is_refused_and_never_asked_for(
    desk: Desk, root: Path, old: str, new: str, said: str
) -> None:
    """A question that says nothing would let the edit through if the file changed meanwhile."""
    (root / "a.txt").write_text("one\n")
    assert said in desk.fail("edit_file", path="a.txt", old=old, new=new)
    assert said in refusal(lambda: desk.asks("edit_file", path="a.txt", old=old, new=new))


def test_line_ends_stay_what_they_are(desk: Desk, root: Path) -> None:
    (root / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    desk.run("edit_file", path="dos.txt", old="one\ntwo", new="1\n2")
    assert (root / "dos.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


def test_files_that_are_not_utf_8_are_not_edited(desk: Desk, root: Path) -> None:
    (root / "a").write_bytes(b"\xff old")
    assert "UTF-8" in desk.fail("edit_file", path="a", old="old", new="new")
    assert (root / "a").read_bytes() == b"\xff old"


def test_edits_made_together_do_not_lose_each_other(desk: Desk, root: Path) -> None:
    (root / "a.txt").write_text("".join(f"<{n}>\n" for n in range(20)))

    async def together() -> list[Output]:
        edits = (
            desk.output("edit_file", path="a.txt", old=f"<{n}>", new=f"({n})") for n in range(20)
        )
        return await asyncio.gather(*edits)

    assert not any(output.error for output in asyncio.run(together()))
    assert (root / "a.txt").read_text() == "".join(f"({n})\n" for n in range(20))


# ----------------------------------------------------------------------------------------- diffs


def test_changes_far_apart_are_shown_without_what_is_between() -> None:
    old = [f"{n}\n" for n in range(100)]
    new = ["first\n", *old[1:99], "last\n"]
    assert diff.changes("".join(old), "".join(new)) == (
        "@@ line 1 @@\n-0\n+first\n 1\n 2\n 3\n@@ line 97 @@\n 96\n 97\n 98\n-99\n+last"
    )


def test_a_missing_end_of_line_is_shown() -> None:
    assert diff.changes("a\n", "a") == "@@ line 1 @@\n-a\n+a\n\\ no end of line"
    assert diff.changes("a\nb", "a\nc\n") == ("@@ line 1 @@\n a\n-b\n\\ no end of line\n+c")
    assert diff.changes("", "a\n") == "@@ line 1 @@\n+a"
    assert diff.addition("") == ""


def test_a_diff_of_much_is_quick_and_says_what_it_does_not_show() -> None:
    old, new = "\n".join(["a"] * 50_000), "\n".join(["b", "a"] * 25_000)
    shown = diff.changes(old, new)
    assert len(shown) < 13_000
    assert "characters are not shown here" in shown


# ------------------------------------------------------------------------ listing and searching


@pytest.fixture
def tree(root: Path) -> Path:
    for path in ("a.py", "b.txt", "src/c.py", "src/deep/d.py", ".git/config", "node_modules/m.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"# {path}\nfind Me here\n")
    (root / "link").symlink_to("src")
    (root / "out").symlink_to("/")
    return root


def test_a_folder_is_listed(desk: Desk, tree: Path) -> None:
    assert desk.run("list_files").split("\n") == [
        ".git/",
        "a.py (20 bytes)",
        "b.txt (21 bytes)",
        "link -> src",
        "node_modules/",
        "out -> /",
        "src/",
    ]
    assert desk.run("list_files", path="src").split("\n") == ["src/c.py (24 bytes)", "src/deep/"]
    assert "not a folder" in desk.fail("list_files", path="a.py")
    (tree / "none").mkdir()
    assert desk.run("list_files", path="none") == "(none is empty)"


def test_names_are_found_below_without_following_links(desk: Desk, tree: Path) -> None:
    def found(pattern: str, **more: JSON) -> list[str]:
        listed = desk.run("list_files", pattern=pattern, **more).split("\n")
        return [line.partition(" ")[0] for line in listed]

    assert found("*.py") == ["a.py", "src/c.py", "src/deep/d.py"]
    assert found("src/*.py") == ["src/c.py"]
    assert found("*.py", path="src") == ["src/c.py", "src/deep/d.py"]
    assert "node_modules/m.py" in found("*.py", everything=True)
    assert desk.run("list_files", pattern="*.rs") == "(no matches)"


def test_what_is_listed_and_found_below_can_be_read_from_the_root(desk: Desk, tree: Path) -> None:
    assert desk.run("list_files", path="src").split("\n") == ["src/c.py (24 bytes)", "src/deep/"]
    hits = desk.run("search_files", text="find Me", path="src", pattern="*.py").split("\n")
    paths = [hit.partition(":")[0] for hit in hits]
    assert paths == ["src/c.py", "src/deep/d.py"]
    for path in paths:
        assert "find Me" in desk.run("read_file", path=path)


def test_a_long_list_says_how_much_it_does_not_show(desk: Desk, root: Path) -> None:
    for number in range(300):
        (root / f"file-{number:03}").touch()
    listed = desk.run("list_files").split("\n")
    assert sum(map(len, listed)) < 2_000
    assert listed[-1] == f"[{300 - (len(listed) - 1)} more are not shown]"


def test_text_is_found_with_its_place(desk: Desk, tree: Path) -> None:
    assert desk.run("search_files", text="find Me").split("\n") == [
        "a.py:2: find Me here",
        "b.txt:2: find Me here",
        "src/c.py:2: find Me here",
        "src/deep/d.py:2: find Me here",
    ]
    assert desk.run("search_files", text="find me") == "(not found)"
    assert "a.py:2" in desk.run("search_files", text="FIND ME", ignore_case=True)
    assert desk.run("search_files", text="Me", pattern="*.txt") == "b.txt:2: find Me here"
    assert desk.run("search_files", text="Me", path="src/c.py") == "src/c.py:2: find Me here"
    assert desk.run("search_files", text="c.py\nfind", path="src") == "src/c.py:1: # src/c.py"
    assert "nothing to search for" in desk.fail("search_files", text="")


def test_text_is_not_a_pattern(desk: Desk, root: Path) -> None:
    (root / "a").write_text("a+b (c|d) .*\n" + "a" * 30_000 + "\n")
    assert desk.run("search_files", text="(c|d) .*") == "a:1: a+b (c|d) .*"
    assert desk.run("search_files", text="(a+)+$") == "(not found)"


def test_a_search_passes_over_what_it_cannot_read(desk: Desk, root: Path) -> None:
    (root / "bin").write_bytes(b"needle\0")
    (root / "latin").write_bytes(b"\xff needle")
    os.mkfifo(root / "pipe")
    with (root / "huge").open("wb") as file:
        file.write(b"needle")
        file.truncate(9 * 1024 * 1024)
    found = desk.run("search_files", text="needle").split("\n")
    assert found == [
        "latin:1: \ufffd needle",
        "[not searched: 1 files, too large or unreadable]",
    ]


def test_many_hits_are_counted_and_not_all_shown(desk: Desk, root: Path) -> None:
    (root / "a").write_text("needle\n" * 1000 + "x" * 5000 + "needle\n")
    found = desk.run("search_files", text="needle").split("\n")
    assert found[-1] == f"[{1001 - (len(found) - 1)} more lines are not shown]"
    assert sum(map(len, found)) < 2_100


def test_a_walk_stops_when_it_is_told_to(tree: Path) -> None:
    stop = Event()
    walk = Walk(Workspace(str(tree)), WorkspacePath(()), stop, everything=False)
    seen = []
    for entry in walk:
        seen.append(entry.name)
        if len(seen) == 2:
            stop.set()
    assert len(seen) == 2
    assert walk.ended_early


def test_work_that_is_given_up_is_told_so() -> None:
    told = Event()

    def work(stop: Event) -> None:
        assert stop.wait(30)
        told.set()

    async def given_up() -> None:
        async with asyncio.timeout(0.01):
            await stoppable(work)

    with pytest.raises(TimeoutError):
        asyncio.run(given_up())
    assert told.wait(30)


# -------------------------------------------------------------------------------------- secrets


def test_a_walk_leaves_secrets_out_and_counts_them(desk: Desk, root: Path) -> None:
    (root / ".ssh").mkdir()
    for name in (".env", ".ssh/config", "a.txt"):
        (root / name).write_text("canary\n")
    left_out = "[2 left out that may hold secrets; the user is asked if you name one]"
    assert desk.run("search_files", text="canary").split("\n") == ["a.txt:1: canary", left_out]
    listed = desk.run("list_files", pattern="*", everything=True).split("\n")
    assert listed == [
        ".env (7 bytes)",
        ".ssh/",
        "a.txt (7 bytes)",
        "[1 left out that may hold secrets; the user is asked if you name one]",
    ]
    # What the user was asked for, and approved, is read.
    assert desk.run("search_files", text="canary", path=".ssh") == ".ssh/config:1: canary"
    assert desk.run("search_files", text="canary", path=".env") == ".env:1: canary"


def test_with_consent_for_all_reads_nothing_is_asked_or_left_out(tmp_path: Path) -> None:
    desk = Desk(file_tools(str(tmp_path), reads=True), tmp_path)
    (tmp_path / ".env").write_text("canary\n")
    assert desk.asks("read_file", path=".env") is None
    assert desk.run("search_files", text="canary") == ".env:1: canary"
    desk.close()
