"""A thousand strings as people look for them: none raises, and each finds where it was said."""

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


def _string(rnd: random.Random) -> str:
    shape = rnd.choice(_SHAPES)
    return shape.format(*rnd.choices(_WORDS, k=3))


def _filler(rnd: random.Random) -> str:
    return " ".join(rnd.choices(("lorem", "ipsum", "dolor", "sit", "amet"), k=rnd.randint(0, 12)))


def test_a_thousand_strings(store_url: str) -> None:
    rnd = random.Random(2026)
    strings = [_string(rnd) for _ in range(1000)]
    with holdfast.open(store_url) as store:
        session = store.session("all")
        session.append(
            *(
                Message.user(f"{_filler(rnd)} {text} {_filler(rnd)}", id=str(number))
                for number, text in enumerate(strings)
            )
        )
        missed = []
        # Without an index each search reads all of it, and on a server it takes many journeys: a
        # part of them must do.
        asked = {"memory": 50, "sqlite": 1000, "postgresql": 200}[store_url.partition(":")[0]]
        for number, text in enumerate(strings[:asked]):
            store.search(text)
            found = store.search(text, literal=True, session="all", limit=1000)
            if str(number) not in {hit.message_id for hit in found}:
                missed.append(text)
        assert missed == []


def test_a_query_of_very_many_words(store_url: str) -> None:
    """More than a statement of any engine may have: every one of them counts."""
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
