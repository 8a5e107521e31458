"""Tools for the files of the workspace: read, write, edit, list, search.

Reading, listing and searching need approval for secrets and in a home directory (`read_guard`).
Writing always does, and shows a diff. A file is written completely or not at all. Writes of one
agent are serialized, so that two calls made together do not overwrite each other's change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import Event, Lock
from typing import Any, Final

from holdfast.agent.tools import diff
from holdfast.agent.tools.directory_walk import Entry, Walk
from holdfast.agent.tools.file_search import FileSearchResults, TextQuery
from holdfast.agent.tools.function_tools import ToolError, make_tool
from holdfast.agent.tools.glob import matcher
from holdfast.agent.tools.protocol import Ask, Tool, ToolContext
from holdfast.agent.tools.read_guard import ReadGuard
from holdfast.agent.tools.text_file import (
    cut_line,
    decoded,
    describe_type,
    encoded,
    is_binary,
    lines_of,
    with_crlf,
)
from holdfast.agent.tools.worker_thread import stoppable
from holdfast.agent.tools.workspace import Workspace, WorkspacePath

MAX_OUTPUT_CHARS: Final = 20_000
_DEFAULT_LINES: Final = 2_000
_MAX_LINE_CHARS: Final = 2_000
_MAX_LISTED: Final = 1_000
_RESERVED_CHARS: Final = 500  # Characters reserved for notes beside the content.


def file_tools(
    root: str,
    *,
    output: int = MAX_OUTPUT_CHARS,
    config_file: str | None = None,
    own_files: Collection[str] = (),
    reads: bool = False,
) -> tuple[Tool, ...]:
    """Return the tools; they show at most about `output` characters at a time.

    `config_file` is the user's own configuration: no rule for writes covers it. Neither it nor
    `own_files`, files and folders of this program, nor other secrets are read without approval,
    except with `reads`.
    """
    space = Workspace(root, config_file)
    guarded = own_files if config_file is None else (*own_files, config_file)
    files = FileTools(space, output, None if reads else ReadGuard(space, guarded))
    return (
        make_tool(files.read_file, asks=files.ask_to_read),
        make_tool(files.write_file, asks=files.question(files.ask_to_write)),
        make_tool(files.edit_file, asks=files.question(files.ask_to_edit)),
        make_tool(files.list_files, asks=files.ask_to_read),
        make_tool(files.search_files, asks=files.ask_to_read),
    )


class FileTools:
    """The tools, for one workspace."""

    def __init__(
        self, space: Workspace, output: int = MAX_OUTPUT_CHARS, guard: ReadGuard | None = None
    ) -> None:
        self._space = space
        self._guard = guard
        self._output = max(output - _RESERVED_CHARS, _RESERVED_CHARS)
        self._write_lock = Lock()

    def _resolve_writable(self, path: str) -> WorkspacePath:
        target = self._space.resolve(path)
        self._space.check_writable(target, path)
        return target

    # -------------------------------------------------------------------------------- reading

    def ask_to_read(self, context: ToolContext, given: dict[str, Any]) -> Ask | None:
        """Return the question for the user if what is to be read needs one."""
        path: str = given.get("path", ".")
        target = self._space.resolve(path)
        return None if self._guard is None else self._guard.ask(context.call, target, path)

    def _secrets_below(self, start: WorkspacePath) -> Callable[[WorkspacePath], bool] | None:
        """Return which files a walk leaves out; none if the user approved a secret folder."""
        if self._guard is None or self._guard.is_secret(start):
            return None
        return self._guard.is_secret

    def read_file(self, path: str, start: int = 1, count: int = _DEFAULT_LINES) -> str:
        """Read a text file of the workspace, or some lines of it.

        Args:
            path: The file, relative to the working directory.
            start: The first line to read; 1 is the first line of the file.
            count: How many lines to read.
        """
        target = self._space.resolve(path)
        data = self._space.read(target)
        if is_binary(data):
            return f"{target.display} is not text: {describe_type(data)}, {len(data):,} bytes."
        text, note = decoded(data)
        if not text:
            return f"({target.display} is empty)"
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        start = max(start, 1)
        if start > len(lines):
            raise ToolError(f"{target.display} has only {len(lines):,} lines.")
        shown = self._fitting_lines(lines[start - 1 : start - 1 + max(count, 1)])
        end = start - 1 + len(shown)
        if start > 1 or end < len(lines):
            note += f"\n[lines {start:,} to {end:,} of {len(lines):,}"
            note += f"; continue with start={end + 1}]" if end < len(lines) else "]"
        elif not note and shown == lines:
            return text
        return "\n".join(shown) + note

    def _fitting_lines(self, lines: Sequence[str]) -> list[str]:
        """Return as many lines as fit, at least one; very long lines are cut."""
        shown: list[str] = []
        room = self._output
        for line in lines:
            short = cut_line(line, _MAX_LINE_CHARS)
            room -= len(short) + 1
            if room < 0 and shown:
                break
            shown.append(short)
        return shown

    # -------------------------------------------------------------------------------- writing

    def write_file(self, path: str, content: str) -> str:
        """Write a whole file of the workspace: create it, or replace its content.

        Args:
            path: The file, relative to the working directory; missing folders are created.
            content: The complete content of the file.
        """
        target = self._resolve_writable(path)
        data = encoded(content)
        with self._write_lock:
            new = self._space.write(target, data)
        return f"{'created' if new else 'replaced'} {target.display} ({len(data):,} bytes)."

    def question(
        self, describe: Callable[[dict[str, Any]], str]
    ) -> Callable[[ToolContext, dict[str, Any]], Ask]:
        """Return a function that asks for a write; `describe` says what it would change."""

        def ask(context: ToolContext, given: dict[str, Any]) -> Ask:
            target = self._resolve_writable(given["path"])
            read = self.ask_to_read(context, given)
            try:
                what = describe(given)
            except ToolError as error:
                if read is None:
                    raise
                # What a file that may not be read does not contain is not for the model to know.
                what = f"{read.what}\n{error}"
            secret = read is not None and read.sensitive
            names = (target, self._space.as_given(given["path"]))
            return Ask(context.call, what, secret or any(map(self._space.is_sensitive, names)))

        return ask

    def ask_to_write(self, given: dict[str, Any]) -> str:
        """Return the question for the user: what writing would change."""
        target = self._resolve_writable(given["path"])
        content: str = given["content"]
        encoded(content)
        if self._space.is_file(target) is None:
            return f"create {target.display}\n{diff.addition(content)}"
        data = self._space.read(target)
        if is_binary(data):
            return f"replace {target.display}, {describe_type(data)}\n{diff.addition(content)}"
        return f"replace {target.display}\n{diff.changes(decoded(data)[0], content)}"

    def edit_file(self, path: str, old: str, new: str, *, every: bool = False) -> str:
        """Replace text in a file of the workspace. The old text must be in the file exactly once.

        Args:
            path: The file, relative to the working directory.
            old: The text to replace, exactly as it is in the file, with enough around it to occur
                only once.
            new: The text to replace it with.
            every: Replace every occurrence; the text may then occur more than once.
        """
        target = self._resolve_writable(path)
        with self._write_lock:
            _, after, count = self._apply_edit(target, old, new, every=every)
            self._space.write(target, encoded(after))
        times = "1 occurrence" if count == 1 else f"{count:,} occurrences"
        return f"replaced {times} in {target.display}."

    def ask_to_edit(self, given: dict[str, Any]) -> str:
        """Return the question for the user: what editing would change."""
        target = self._resolve_writable(given["path"])
        every = given.get("every", False)
        before, after = self._apply_edit(target, given["old"], given["new"], every=every)[:2]
        return f"edit {target.display}\n{diff.changes(before, after)}"

    def _apply_edit(
        self, target: WorkspacePath, old: str, new: str, *, every: bool
    ) -> tuple[str, str, int]:
        """Return the text before and after the edit, and the number of replacements."""
        try:
            before = self._space.read(target).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolError(f"{target.display} is not UTF-8 text; it cannot be edited.") from error
        if not old:
            raise ToolError("old is empty; use write_file to write a whole file.")
        if old == new:
            raise ToolError("old and new are the same.")
        if old not in before and "\r\n" in before:
            # Models write LF line ends, whatever the file has.
            old, new = with_crlf(old), with_crlf(new)
        count = before.count(old)
        if count == 0:
            raise ToolError(f"the old text is not in {target.display}; read the file again.")
        if count > 1 and not every:
            raise ToolError(
                f"the old text occurs {count:,} times in {target.display} "
                f"({lines_of(before, old)}). Include more context, or set every=true."
            )
        return before, before.replace(old, new), count

    # ------------------------------------------------------------------- listing and searching

    async def list_files(
        self, path: str = ".", pattern: str = "", *, everything: bool = False
    ) -> str:
        """List a folder of the workspace, or find files in it and its subfolders by a pattern.

        Args:
            path: The folder, relative to the working directory.
            pattern: Which names to list from all subfolders, such as *.py or src/**/test_*.
            everything: Include folders such as .git and node_modules.
        """
        return await stoppable(partial(self._list, path, pattern, everything=everything))

    def _list(self, path: str, pattern: str, stop: Event, *, everything: bool) -> str:
        start = self._space.resolve(path)
        fits = matcher(pattern) if pattern else None
        deep = fits is not None
        walk = Walk(
            self._space,
            start,
            stop,
            everything=everything,
            deep=deep,
            sized=True,
            is_secret=self._secrets_below(start),
        )
        lines: list[str] = []
        count, room = 0, self._output
        for entry in walk:
            if fits is not None and not fits(entry.path.names[len(start.names) :]):
                continue
            count += 1
            line = _listed(entry)
            room -= len(line) + 1
            if room >= 0 and len(lines) < _MAX_LISTED:
                lines.append(line)
        if not lines:
            lines.append("(no matches)" if fits else f"({start.display} is empty)")
        elif count > len(lines):
            lines.append(f"[{count - len(lines):,} more are not shown]")
        return "\n".join(lines + _notes(walk))

    async def search_files(
        self,
        text: str,
        path: str = ".",
        pattern: str = "",
        *,
        ignore_case: bool = False,
        everything: bool = False,
    ) -> str:
        """Find text in the files of the workspace; returns each matching line with file and number.

        Args:
            text: The text to search for, literally; it is not a regular expression.
            path: The folder (or file) to search, relative to the working directory.
            pattern: Which files to search, such as *.py; all by default.
            ignore_case: Ignore the difference between upper and lower case.
            everything: Include folders such as .git and node_modules.
        """
        if not text:
            raise ToolError("text is empty; there is nothing to search for.")
        query = TextQuery(text, ignore_case)
        return await stoppable(partial(self._search, query, path, pattern, everything=everything))

    def _search(
        self,
        query: TextQuery,
        path: str,
        pattern: str,
        stop: Event,
        *,
        everything: bool,
    ) -> str:
        start = self._space.resolve(path)
        fits = matcher(pattern) if pattern else None
        secrets = self._secrets_below(start)
        walk = Walk(self._space, start, stop, everything=everything, is_secret=secrets)
        if self._space.is_file(start):
            targets = iter([start])
        else:
            files = (entry.path for entry in walk if entry.kind == "file")
            wanted = (p for p in files if fits is None or fits(p.names[len(start.names) :]))
            targets = (path for path in wanted if not walk.leaves_out(path))
        found = FileSearchResults(self._output)
        for target in targets:
            found.search_file(self._space, target, query)
        return "\n".join(found.lines() + _notes(walk))


def _listed(entry: Entry) -> str:
    if entry.kind == "folder":
        return f"{entry.path.display}/"
    if entry.target is not None:
        return f"{entry.path.display} -> {entry.target}"
    return (
        entry.path.display if entry.size is None else f"{entry.path.display} ({entry.size:,} bytes)"
    )


def _notes(walk: Walk) -> list[str]:
    notes: list[str] = []
    if walk.ended_early:
        notes.append("[incomplete: there are too many files; choose a subfolder]")
    if walk.unreadable:
        notes.append(f"[{walk.unreadable:,} folders cannot be read]")
    if walk.left_out:
        notes.append(
            f"[{walk.left_out:,} left out that may hold secrets; the user is asked if you name one]"
        )
    return notes
