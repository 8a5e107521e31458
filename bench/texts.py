"""Texts to search in: synthetic, realistic and deterministic.

Words follow Zipf's law: a few are in every message, half of the vocabulary hardly ever occurs.
Words form one long stream, and a message is a slice of it, so neighbours vary and creating a
million is fast. Tools answer with JSON, code or log lines. One conversation in twelve is in
Chinese. Every user message has a unique reference.

Sessions have between 8 and 400 messages, a title, and one of twelve scopes, but for one in 200,
which has a scope of its own; they are a quarter of an hour apart.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, count, islice, pairwise, product
from typing import Final

import msgspec

from bench import material
from holdfast import Message, Store, ToolCall, codec
from holdfast.clock import to_micros
from holdfast.search.document import document
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import BranchStart, MessageRow, SessionRow
from holdfast.values import Role

_SCOPES: Final = tuple(f"team{number}" for number in range(12))
_RARE_SCOPE: Final = "audit"
_RARE_EVERY: Final = 200
_LENGTHS: Final = (8, 12, 20, 32, 48, 80, 120, 400)
_MESSAGES_PER_COMMIT: Final = 20_000
_APART: Final = timedelta(minutes=15)
_SAID: Final = 600_000
_CHINESE_SAID: Final = 10_000
_EVERY: Final = 12
_LINES: Final = 8_000
_COMMON: Final = (
    "the of and to in a is that for it with as on be this are by from at was or we you can not "
    "have will parcel order customer address error file test build server request please thanks"
)
_SYLLABLES: Final = (
    "ba co da fe gi ho ju ka lo mi nu pa qui ro se ta vu wa xe yo zi tra ber lin mon der sol pik"
)
_FIELDS: Final = ("id", "name", "status", "path", "owner", "count", "reason", "created_at", "items")
_IDEOGRAPHS: Final = re.compile("([\u3400-\u9fff])")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A query, in Holdfast's grammar and in that of the bare engine."""

    kind: str
    ours: str
    theirs: str
    role: Role | None = None
    scope: str | None = None


class CreatedMessage(msgspec.Struct, frozen=True):
    """A created message: its role, its session, and its searchable text."""

    session: int
    title: str
    scope: str
    seq: int
    id: str
    role: Role
    at: datetime
    text: str


class Texts:
    """The generator of texts; deterministic."""

    def __init__(self) -> None:
        chance = self._chance = random.Random(7)
        self.words = _vocabulary()
        self.stream = _zipf(chance, self.words, _SAID)
        self.prose = _punctuated(self.stream)
        characters = [chr(0x4E00 + (13 * number) % 20_000) for number in range(2_500)]
        self.chinese = _zipf(chance, characters, _CHINESE_SAID)
        self.usual = {*self.words[:100], *characters[:20]}
        self.lines = [
            [make(chance, self.stream) for _ in range(_LINES)] for make in (_json, _code, _logged)
        ]

    def turn(self, number: int) -> tuple[Message, ...]:
        """Return the messages of a turn: question, tool call, tool result and reply."""
        chance = self._chance
        chinese = number // 5 % _EVERY == 0
        say = self._say_chinese if chinese else self._say
        path = f"{chance.choice(self.stream)}/{chance.choice(self.stream)}.py"
        call = ToolCall(f"call_{number}", "read_file", {"path": path, "limit": number % 200})
        lines = chance.choice(self.lines)
        first, size = chance.randrange(_LINES), chance.choice((8, 16, 32, 72))
        return (
            Message.user(f"{say(45)} {reference(number)}"),
            Message.assistant(say(12), tool_calls=[call]),
            Message.tool(call.id, "\n".join(lines[first : first + size]), name=call.name),
            Message.assistant(say(130)),
        )

    def title(self) -> str:
        """Return the title of a session."""
        return self._say(5).rstrip(".").capitalize()

    def _say(self, words: int) -> str:
        first = self._chance.randrange(_SAID - words)
        return " ".join(self.prose[first : first + words])

    def _say_chinese(self, words: int) -> str:
        first = self._chance.randrange(_CHINESE_SAID - words)
        return "".join(self.chinese[first : first + words]) + "\N{IDEOGRAPHIC FULL STOP}"

    # ---------------------------------------------------------------------------------- queries

    def questions(self, messages: int) -> list[Question]:
        """Return queries for a store of this many messages: five of each kind."""
        words, middle = self.words, self.words[150:900:150]
        turns = range(0, messages // 4 - 1, messages // 20)
        rare = [reference(number) for number in turns][:5]
        pairs = [(words[20 + number], words[60 + 7 * number]) for number in range(5)]
        said = (pair for pair in pairwise(self.stream) if self.usual.issuperset(pair))
        found = [
            *(_words("rare word", word) for word in rare),
            *(_words("common word", word) for word in words[:10:2]),
            *(_words("usual word", word) for word in middle),
            *(_words("two words", *pair) for pair in pairs),
            *(_phrase("phrase", pair) for pair in islice(said, 5)),
        ]
        for word in middle:
            start = word[:3]
            found.append(Question(kind="beginning", ours=f"{start}*", theirs=f'"{start}" *'))
        together = (pair for pair in pairwise(self.chinese) if self.usual.issuperset(pair))
        for characters in [("\u4e00",), (self.chinese[0],), *islice(together, 3)]:
            theirs = f'"{" ".join(characters)}"'
            found.append(Question(kind="Chinese", ours="".join(characters), theirs=theirs))
        found += [_with("role", word, role="tool") for word in words[5:10]]
        found += [_with("scope", word, scope=_SCOPES[5]) for word in words[12:17]]
        found += [_with("rare scope", word, scope=_RARE_SCOPE) for word in words[17:20]]
        return found


def reference(number: int) -> str:
    """Return a word that occurs in one turn only."""
    return f"ref{number * 2_654_435_761 % 2**32:08x}"


def spaced(text: str) -> str:
    """Separate Chinese characters by spaces, so that the bare engine finds them, too."""
    return text if text.isascii() else _IDEOGRAPHS.sub(r" \1 ", text)


def _words(kind: str, *words: str) -> Question:
    return Question(kind=kind, ours=" ".join(words), theirs=" ".join(f'"{word}"' for word in words))


def _phrase(kind: str, words: Sequence[str]) -> Question:
    quoted = f'"{" ".join(words)}"'
    return Question(kind=kind, ours=quoted, theirs=quoted)


def _with(kind: str, word: str, role: Role | None = None, scope: str | None = None) -> Question:
    said = f"role:{role}" if role else f"scope:{scope}"
    return Question(
        kind=f"word and {kind}", ours=f"{word} {said}", theirs=f'"{word}"', role=role, scope=scope
    )


# -------------------------------------------------------------------------------------- material


def _vocabulary() -> list[str]:
    """Return 20,000 words, the most frequent first."""
    syllables = _SYLLABLES.split()
    made = ["".join(three) for three in product(syllables, repeat=3)]
    random.Random(5).shuffle(made)
    return [*_COMMON.split(), *made][:20_000]


def _zipf(chance: random.Random, words: Sequence[str], size: int) -> list[str]:
    weights = accumulate(1 / (rank + 2.7) for rank in range(len(words)))
    return chance.choices(words, cum_weights=list(weights), k=size)


def _punctuated(words: Sequence[str]) -> list[str]:
    """Make sentences of twelve words."""
    ended = {11: ".", 5: ","}
    return [
        f"{word.capitalize() if not index % 12 else word}{ended.get(index % 12, '')}"
        for index, word in enumerate(words)
    ]


def _json(chance: random.Random, stream: Sequence[str]) -> str:
    field, word, other = chance.choice(_FIELDS), chance.choice(stream), chance.choice(stream)
    return f'  {{"{field}": "{word} {other}", "n": {chance.randrange(10**6)}}},'


def _code(chance: random.Random, stream: Sequence[str]) -> str:
    one, two, three = (chance.choice(stream) for _ in range(3))
    return f"    self._{one}_{two} = {two}{three.capitalize()}({one}, {chance.randrange(100)})"


def _logged(chance: random.Random, stream: Sequence[str]) -> str:
    one, two, three = (chance.choice(stream) for _ in range(3))
    second = f"2026-03-{chance.randrange(1, 29):02}T10:{chance.randrange(60):02}:07Z"
    return f"{second} WARN {one}/{two}.py:{chance.randrange(900)} {three} {two} [{one}]"


# ----------------------------------------------------------------------------------- laying down


class _Conversation(msgspec.Struct, frozen=True):
    """A session to be created."""

    number: int
    title: str
    at: datetime
    history: list[codec.EncodedMessage]

    @property
    def scope(self) -> str:
        if self.number % _RARE_EVERY == 7:
            return _RARE_SCOPE
        return _SCOPES[self.number % len(_SCOPES)]


def create_conversations(store: Store, messages: int) -> Iterator[CreatedMessage]:
    """Create sessions of this many messages in all; yield each message as it can be searched."""
    batch: list[_Conversation] = []
    for conversation in _conversations(Texts(), messages):
        batch.append(conversation)
        if sum(len(one.history) for one in batch) >= _MESSAGES_PER_COMMIT:
            yield from _create_batch(store, batch)
            batch = []
    yield from _create_batch(store, batch)


def _conversations(texts: Texts, messages: int) -> Iterator[_Conversation]:
    sessions = messages * len(_LENGTHS) // sum(_LENGTHS) + 2
    begin = datetime.now(UTC) - _APART * sessions
    turns, left = count(), messages
    for number in count():
        length, at = min(left, _LENGTHS[number % len(_LENGTHS)]), begin + _APART * number
        if not length:
            return
        said = (texts.turn(next(turns)) for _ in range(length // material.MESSAGES_PER_TURN))
        history = [item for turn in said for item in codec.encode_batch(turn, at)[0]]
        yield _Conversation(number, texts.title(), at, history)
        left -= length


def _create_batch(store: Store, batch: Sequence[_Conversation]) -> Iterator[CreatedMessage]:
    store.backend.write(_adding(batch))
    for one in batch:
        for seq, item in enumerate(one.history, 1):
            role, text = item.message.role, document(item.message).text
            yield CreatedMessage(one.number, one.title, one.scope, seq, item.id, role, one.at, text)


def _adding(batch: Sequence[_Conversation]) -> Operation[None]:
    def run(tx: Transaction) -> None:
        for conversation in batch:
            _add(tx, conversation)

    return run


def _add(tx: Transaction, conversation: _Conversation) -> None:
    name, at = f"said{conversation.number:012}", to_micros(conversation.at)
    n = tx.add_session(
        SessionRow(
            n=0,
            id=name,
            key=None,
            scope=conversation.scope,
            agent="bench",
            title=conversation.title,
            title_by="auto",
            model="model-1",
            cwd=None,
            created_at=at,
            pinned=False,
            archived=False,
            trashed_at=None,
            goal=None,
            metadata=b"{}",
            parent=None,
            relation=None,
        ),
        BranchStart(token=name),
    )
    head = tx.head(n)
    assert head is not None
    rows = [
        MessageRow.create(seq, item.id, None, item.body)
        for seq, item in enumerate(conversation.history, 1)
    ]
    tx.add_messages(head.branch, rows)
    tx.put_head(msgspec.structs.replace(head, seq=len(rows), updated_at=at))
