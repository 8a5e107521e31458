"""Strings as users search for them: none raises, and each finds its message."""

import random
from pathlib import Path

import pytest

import holdfast
from holdfast import Message

_WORDS = (
    "parcel", "it's", "don't", "naïve", "café", "Straße", "Zürich", "résumé", "TODO", "FIXME",
    "userName", "getHTTPResponse", "snake_case_name", "kebab-case", "C++", "C#", "F#", ".NET",
    "node.js", "v1.2.3", "50%", "$5", "€7", "#142", "@ada", "ada@example.org", "10.0.0.12", "::1",
    "0x1F", "1e-9", "3.14", "2026-01-31T10:00:05Z", "10:30", "NULL", "AND", "OR", "NOT", "NEAR",
    "SELECT", "*", "**bold**", "`code`", "->", "=>", "==", "!=", "&&", "||", "...", "…", "—",
    "\u2013", "\u201cquoted\u201d", '"quoted"', "'single'", "(paren)", "[bracket]", "{brace}",
    "<tag>", "</b>", "a/b", "~/x", "C:\\Users\\ada", "src/index/file.py:42", "--flag", "-x",
    "https://example.org/a?b=c#d", "role:user", "title:x", "since:7d", "key=value", "a:b", "🎉",
    "👍🏽", "❤️", "我爱编程", "データベース", "한국어", "Привет", "Ελλάδα", "שלום", "مرحبا", "ไทย",
    "हिन्दी", "e\u0301te\u0301", "ﬁne", "\uff21\uff22", "½", "x²", "H₂O", "™", "\U0001d4b3",
    "\u200bzero", "tab\there", "9f86d081884c7d65",
)  # fmt: skip
_SHAPES = (
    "Traceback (most recent call last): {}",
    'File "{}", line 7, in {}',
    "$ {} | grep {}",
    '{{"{}": "{}"}}',
    "def {}({}): return {}",
    "# {}: {}",
    "{}, {} and {}",
    "{} {}",
    "{}",
)


def _string(number: int, rnd: random.Random) -> str:
    """Each word comes in turn, and each shape: there is no common divisor."""
    words = [_WORDS[number % len(_WORDS)], *rnd.choices(_WORDS, k=2)]
    return _SHAPES[number % len(_SHAPES)].format(*words)


def _filler(rnd: random.Random) -> str:
    return " ".join(rnd.choices(("lorem", "ipsum", "dolor", "sit", "amet"), k=rnd.randint(0, 12)))


def test_every_string_is_found_where_it_was_said(store_url: str) -> None:
    """Every word at least once; in a file, where searches cost least, in several shapes."""
    rnd = random.Random(2026)
    count = len(_WORDS) * (4 if store_url.startswith("sqlite:") else 1)
    strings = [_string(number, rnd) for number in range(count)]
    with holdfast.open(store_url, durability="process") as store:
        session = store.session("all")
        session.append(
            *(
                Message.user(f"{_filler(rnd)} {text} {_filler(rnd)}", id=str(number))
                for number, text in enumerate(strings)
            )
        )
        missed = []
        for number, text in enumerate(strings):
            store.search(text)
            found = store.search(text, literal=True, session="all", limit=1000)
            if str(number) not in {hit.message_id for hit in found}:
                missed.append(text)
        assert missed == []


def test_a_query_of_very_many_words(store_url: str) -> None:
    """More terms than an SQL statement may have values: every one of them counts."""
    text = " ".join(f"w{number}" for number in range(1_100))
    with holdfast.open(store_url) as store:
        session = store.session("all")
        session.append(Message.user(text), Message.user("something else"))
        for asked in (text, f'"{text}"', f"{text} -parcel"):
            assert [hit.seq for hit in store.search(asked, session="all")] == [1]
        assert store.search(f"{text} missing").items == ()
        unwanted = " ".join(f"-{word}" for word in text.split())
        assert [hit.seq for hit in store.search(unwanted, session="all")] == [2]
        assert store.index_status().state in {"ready", "none"}


@pytest.mark.parametrize("words", [400, 800])
def test_a_whole_page_may_be_looked_for(words: int, tmp_path: Path) -> None:
    """A text that was pasted finds itself, in a message and as a title, however long it is."""
    page = " ".join(f"w{number}" for number in range(words))
    with holdfast.open(tmp_path / "agent.db") as store:
        store.session("said").append(Message.user(page, id="it"))
        store.session("titled", title=page).append(Message.user("something else"))
        for literal in (True, False):
            found = {hit.message_id for hit in store.search(page, literal=literal)}
            assert "it" in found
            assert len(found) == 2  # The message, and the title.
