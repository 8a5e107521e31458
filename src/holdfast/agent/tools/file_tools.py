"""Tools for the files of the workspace: read, write, edit, list, search.

Reading, listing and searching need no approval. Writing does, and shows a diff. A file is written
completely or not at all. Writes of one agent are serialized, so that two calls made together do
not overwrite each other's change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Event, Lock
from typing import Any, Final, TypeAlias

from holdfast.agent.tools import diff
from holdfast.agent.tools.directory_walk import Entry, Walk
from holdfast.agent.tools.file_search import FileSearchResults, TextQuery
from holdfast.agent.tools.function_tools import ToolError, make_tool
from holdfast.agent.tools.glob import matcher
from holdfast.agent.tools.protocol import Tool, ToolContext
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

WorkspaceOf: TypeAlias = Callable[[ToolContext], Workspace]

MAX_OUTPUT_CHARS: Final = 20_000
_DEFAULT_LINES: Final = 2_000
_MAX_LINE_CHARS: Final = 2_000
_MAX_LISTED: Final = 1_000
_RESERVED_CHARS: Final = 500  # Characters reserved for notes beside the content.


def workspace_of(root: str | None) -> WorkspaceOf:
    """Return a function that gives a call's workspace: `root`, or the session's directory."""
    if root is None:
        return lambda context: Workspace(context.cwd)
    space = Workspace(root)
    return lambda _: space


def file_tools(root: str | None = None, *, output: int = MAX_OUTPUT_CHARS) -> tuple[Tool, ...]:
    """Return the tools; they show at most about `output` characters at a time."""
    files = FileTools(workspace_of(root), output)
    return (
        make_tool(files.read_file),
        make_tool(files.write_file, asks=files.ask_to_write),
        make_tool(files.edit_file, asks=files.ask_to_edit),
        make_tool(files.list_files),
        make_tool(files.search_files),
    )


class FileTools:
    """The tools, for one workspace."""

    def __init__(self, where: WorkspaceOf, output: int = MAX_OUTPUT_CHARS) -> None:
        self._workspace_of = where
        self._output = max(output - _RESERVED_CHARS, _RESERVED_CHARS)
        self._write_lock = Lock()

    def _resolve(self, context: ToolContext, path: str) -> tuple[Workspace, WorkspacePath]:
        space = self._workspace_of(context)
        return space, space.resolve(path, context.cwd)

    def _resolve_writable(self, context: ToolContext, path: str) -> tuple[Workspace, WorkspacePath]:
        space, target = self._resolve(context, path)
        space.check_writable(target, path)
        return space, target

    # -------------------------------------------------------------------------------- reading

    def read_file(
        self, context: ToolContext, path: str, start: int = 1, count: int = _DEFAULT_LINES
    ) -> str:
        """Read a text file of the workspace, or some lines of it.

        Args:
            path: The file, relative to the working directory.
            start: The first line to read; 1 is the first line of the file.
            count: How many lines to read.
        """
        space, target = self._resolve(context, path)
        data = space.read(target)
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

    def write_file(self, context: ToolContext, path: str, content: str) -> str:
        """Write a whole file of the workspace: create it, or replace its content.

        Args:
            path: The file, relative to the working directory; missing folders are created.
            content: The complete content of the file.
        """
        space, target = self._resolve_writable(context, path)
        data = encoded(content)
        with self._write_lock:
            new = space.write(target, data)
        return f"{'created' if new else 'replaced'} {target.display} ({len(data):,} bytes)."

    def ask_to_write(self, context: ToolContext, given: dict[str, Any]) -> str:
        """Return the question for the user: what writing would change."""
        space, target = self._resolve_writable(context, given["path"])
        content: str = given["content"]
        encoded(content)
        if space.is_file(target) is None:
            return f"create {target.display}\n{diff.addition(content)}"
        data = space.read(target)
        if is_binary(data):
            return f"replace {target.display}, {describe_type(data)}\n{diff.addition(content)}"
        return f"replace {target.display}\n{diff.changes(decoded(data)[0], content)}"

    def edit_file(
        self, context: ToolContext, path: str, old: str, new: str, *, every: bool = False
    ) -> str:
        """Replace text in a file of the workspace. The old text must be in the file exactly once.

        Args:
            path: The file, relative to the working directory.
            old: The text to replace, exactly as it is in the file, with enough around it to occur
                only once.
            new: The text to replace it with.
            every: Replace every occurrence; the text may then occur more than once.
        """
        space, target = self._resolve_writable(context, path)
        with self._write_lock:
            _, after, count = self._apply_edit(space, target, old, new, every=every)
            space.write(target, encoded(after))
        times = "1 occurrence" if count == 1 else f"{count:,} occurrences"
        return f"replaced {times} in {target.display}."

    def ask_to_edit(self, context: ToolContext, given: dict[str, Any]) -> str:
        """Return the question for the user: what editing would change."""
        space, target = self._resolve_writable(context, given["path"])
        every = given.get("every", False)
        before, after, _ = self._apply_edit(space, target, given["old"], given["new"], every=every)
        return f"edit {target.display}\n{diff.changes(before, after)}"

    def _apply_edit(
        self, space: Workspace, target: WorkspacePath, old: str, new: str, *, every: bool
    ) -> tuple[str, str, int]:
        """Return the text before and after the edit, and the number of replacements."""
        try:
            before = space.read(target).decode("utf-8")
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
        self, context: ToolContext, path: str = ".", pattern: str = "", *, everything: bool = False
    ) -> str:
        """List a folder of the workspace, or find files in it and its subfolders by a pattern.

        Args:
            path: The folder, relative to the working directory.
            pattern: Which names to list from all subfolders, such as *.py or src/**/test_*.
            everything: Include folders such as .git and node_modules.
        """
        return await stoppable(partial(self._list, context, path, pattern, everything=everything))

    def _list(
        self, context: ToolContext, path: str, pattern: str, stop: Event, *, everything: bool
    ) -> str:
        space, start = self._resolve(context, path)
        fits = matcher(pattern) if pattern else None
        deep = fits is not None
        walk = Walk(space, start, stop, everything=everything, deep=deep, sized=True)
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
        context: ToolContext,
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
        return await stoppable(
            partial(self._search, context, query, path, pattern, everything=everything)
        )

    def _search(
        self,
        context: ToolContext,
        query: TextQuery,
        path: str,
        pattern: str,
        stop: Event,
        *,
        everything: bool,
    ) -> str:
        space, start = self._resolve(context, path)
        fits = matcher(pattern) if pattern else None
        walk = Walk(space, start, stop, everything=everything)
        if space.is_file(start):
            targets = iter([start])
        else:
            files = (entry.path for entry in walk if entry.kind == "file")
            targets = (p for p in files if fits is None or fits(p.names[len(start.names) :]))
        found = FileSearchResults(self._output)
        for target in targets:
            found.search_file(space, target, query)
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
    return notes
