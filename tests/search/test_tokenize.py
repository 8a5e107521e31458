"""The tokenizer: tables of examples, and properties of every text."""

import re
import unicodedata
from itertools import chain, pairwise
from string import ascii_lowercase, ascii_uppercase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.search.fold import JOINED, fold
from holdfast.search.tokenize import MAX_TOKEN_CHARS, NAME_END, part_spans, parts, spans, words
from tests.search.material import ODD, texts

_TOKEN = re.compile(r"[a-z0-9\x80-\U0010ffff]+|[+#%$]+")


def _spaced(tokens: list[str]) -> str:
    return " ".join(tokens)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (" \t\n", ""),
        ("gateway/run.py", "gateway run py"),
        ("it's it\u2019s it\u02bcs", "it s it s it s"),
        ("a_b-c@d", "a b c d"),
        ("C++ C# 50% $5 $$x", "c ++ c # 50 % $ 5 $$ x"),
        ("a+b%c", "a + b % c"),
        ("# Title\n## x\n+ - a + b", "title x a b"),
        ("+++ ### %", ""),
        ("2026-01-31T10:00:05Z", "2026 01 31 10 00 05"),
        ("1T2 aT22 22Tx", "1t2 at22 22tx"),
        ("5Z aZ 22Zx 22Z", "5z az 22zx 22"),
        ("\x1b[1;31mred\x1b[0m \x1b[", "red"),
        ("x\x00y\x7fz\ud800w", "x y z w"),
        ("Straße ﬁn ½ 2½ m² Ⅳ", "strasse fin 1 2 2 1 2 m2 iv"),
        ("Łódź Øre İI\u0131", "lodz ore iii"),
        ("ΟΔΟΣ οδός", "οδοσ οδοσ"),
        ("Ёлка Йод", "елка иод"),
        ("\uff21\uff22\u3000\uff11 \uff23\uff0b\uff0b", "ab 1 c ++"),
        ("我用Python3编程。", "我 用 python3 编 程"),
        ("ﾃﾞｰﾀ か\u3099 ー", "デ ー タ が ー"),
        ("한국 \u1112\u1161\u11ab", "한 국 한"),
        ("ไทย", "ไ ท ย"),
        ("हिन्दी", "हिन्दी"),
        ("❤️ 👍🏽 👨‍👩‍👧 🇩🇪 1️⃣", "❤ 👍 👨 👩 👧 🇩 🇪 1"),
        ("a→b 5€ Foo™ ©", "a → b 5 € foo ™ ©"),
        ("\u3280b", "一 b"),
        ("\u24b6\u24d0", "\u24d0 \u24d0"),
        ("─│█ ⠋ \ue0a0 �", ""),
        ("so\u00adft zero\u200dwidth", "soft zerowidth"),
        ("٣٤ ๓", "34 3"),
        ("-5 \u22125 1\u20442", "5 5 1 2"),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert _spaced(words(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain words Here AND THERE 42", ""),
        ("getUserName", "get user name |"),
        ("HTTPServer2", "http server 2 |"),
        ("parseURL URLs userIDs", "parse url | user ids |"),
        ("sha256sum 10MB utf8", "sha 256 sum | 10 mb | utf 8 |"),
        ("GitHub: iPhone, getUser_nameOf", "git hub | i phone | get user name of |"),
        ("v3.14.1 3.14.1", "v 3 14 1 |"),
        ("python3.12, 1.5GB, 12:30pm.", "python 3 12 | 1 5 gb | 12 30 pm |"),
        ("foo_bar2 x86_64 self.getName()", "foo bar 2 | x 86 64 | self get name |"),
        ("a716-9f86d081 a-b2-" + "c" * 70, "a 716 | a b 2 |"),
        ("--nthreads2-- a2/b", "nthreads 2 | a 2 |"),
        ("ПолучитьИмя \u0444\u0430\u0439\u043b2", "получить имя | \u0444\u0430\u0438\u043b 2 |"),
        ("CaféBar ÉcoleÀCôté", "cafe bar | ecole a cote |"),
        ("ΟδόςΝέα", "οδοσ νεα |"),
        ("9f86d081884c7d65 550e8400 AB12CD", ""),
        ("aGVsbG8gd29ybGQhIQ", ""),
        ("2026-01-31T10:00:05Z", ""),
        ("xY" * 40, ""),
        ("c++11", ""),
        ("\ua000A A\ua000b", "\ua000 a |"),
        ("我用getName", "get name |"),
    ],
)
def test_parts(text: str, expected: str) -> None:
    assert _spaced(parts(text)).replace(NAME_END, "|") == expected


def test_a_long_run_is_cut_into_words_next_to_each_other() -> None:
    assert [len(word) for word in words("x" * 150)] == [MAX_TOKEN_CHARS, MAX_TOKEN_CHARS, 22]
    assert [len(word) for word in words("+" * 70 + "x")] == [MAX_TOKEN_CHARS, 6, 1]
    assert parts("xY" * 32) == []  # many tiny pieces
    assert len(parts("Word" * 16)) == 16 + 1
    assert parts("Word" * 17) == []  # longer than a word may be


@given(text=texts)
def test_a_token_holds_nothing_that_separates_tokens(text: str) -> None:
    assert NAME_END not in words(text)
    for token in [*words(text), *parts(text)]:
        assert _TOKEN.fullmatch(token)
        assert len(token) <= MAX_TOKEN_CHARS
        token.encode()  # no lone surrogate


@given(text=texts)
def test_spans_are_the_words_with_their_places(text: str) -> None:
    assert [token for token, _, _ in spans(text)] == words(text)
    assert [token for token, _, _ in part_spans(text)] == parts(text)


@given(text=texts)
def test_places_are_in_order_and_hold_their_words(text: str) -> None:
    for found in (spans(text), part_spans(text)):
        assert all(0 <= start < end <= len(text) for _, start, end in found)
        assert all(one[1] <= other[1] for one, other in pairwise(found))
    for token, start, end in spans(text):
        inside = words(text[start:end])
        assert token in inside or set(token) <= set("+#%$")


@given(text=texts)
def test_words_of_words_are_the_same_words(text: str) -> None:
    """Folding is idempotent."""
    found = [token for token in words(text) if not set(token) <= set("+#%$")]
    assert words(" ".join(found)) == found


def _has_a_seam(name: str) -> bool:
    """Determine letter by letter whether an ASCII name may consist of several words."""
    kinds = "".join("a" if one.islower() else "A" if one.isupper() else "0" for one in name)
    return any(seam in kinds for seam in ("aA", "a0", "0a", "0A", "A0", "AAa"))


@given(text=st.text("aAbBzZ019xyXY _+.", max_size=80))
def test_the_parts_of_a_text_are_those_of_its_names_one_by_one(text: str) -> None:
    """Names are found by their case boundaries; the words between are not read."""
    names = re.findall("[A-Za-z0-9_.]+", text)
    assert parts(text) == [piece for name in names for piece in parts(name)]
    for name in re.findall("[A-Za-z0-9]+", text):
        assert bool(parts(name)) <= _has_a_seam(name)
        if len(name) <= 3 and _has_a_seam(name):
            assert "".join(parts(name)[:-1]) in (name.lower(), "")


@given(
    words=st.lists(st.text("aAbB019xyXY", min_size=1, max_size=9), min_size=1, max_size=5),
    joints=st.lists(st.sampled_from("._-:"), min_size=4, max_size=4),
)
def test_joined_words_are_parts_of_a_name_if_one_of_them_is_one(
    words: list[str], joints: list[str]
) -> None:
    joined = "".join(map("".join, zip(words, [*joints, ""], strict=False)))
    whole = [[word.lower()] if not _has_a_seam(word) else [] for word in words]
    expected = [parts(word)[:-1] or alone for word, alone in zip(words, whole, strict=True)]
    is_name = any(map(parts, words))
    assert parts(joined) == ([*chain.from_iterable(expected), NAME_END] if is_name else [])


_SIGN = re.compile(rf"{JOINED}|[\s\S]")
_LOWER_ASCII = str.maketrans(ascii_uppercase, ascii_lowercase)


@given(text=texts)
@example(text="\uab70")
def test_a_place_is_where_the_signs_of_a_word_are(text: str) -> None:
    """Folding sign by sign gives the sign that every folded character came from."""
    came_from: list[tuple[int, int]] = []
    for sign in _SIGN.finditer(text):
        new = fold(sign[0])
        if new or not came_from:
            came_from += [sign.span()] * len(new)
            latest = len(new)
        else:  # an accent
            came_from[-latest:] = [(start, sign.end()) for start, _ in came_from[-latest:]]
    # Only ASCII keeps its case. `lower` would also change Cherokee, which folds to capitals.
    at, plain = 0, "".join(map(fold, _SIGN.findall(text))).translate(_LOWER_ASCII)
    for token, start, end in spans(text):
        at = plain.find(token, at)
        while at >= 0 and (came_from[at][0], came_from[at + len(token) - 1][1]) != (start, end):
            at = plain.find(token, at + 1)
        assert at >= 0
        at += len(token)


@given(left=texts, right=texts)
def test_two_texts_have_the_words_of_both(left: str, right: str) -> None:
    assert words(f"{left}\n{right}") == words(left) + words(right)
    assert parts(f"{left}\n{right}") == parts(left) + parts(right)


@given(text=st.text(max_size=24))
def test_a_text_has_the_same_words_however_it_is_composed(text: str) -> None:
    """Except for the order of several marks on one letter, which is invisible."""
    composed = unicodedata.normalize("NFC", text)
    decomposed = unicodedata.normalize("NFD", text)
    assert sorted("".join(words(composed))) == sorted("".join(words(decomposed)))


@given(text=st.text(st.characters(max_codepoint=0x7F)))
def test_capitals_make_no_words_of_ascii(text: str) -> None:
    """Except for the `T` and the `Z` of a time, which are capitals."""
    assert words(text.replace("T", "t").replace("Z", "z")) == words(text.lower())


@pytest.mark.parametrize("kind", ODD)
def test_half_a_megabyte_of_anything_is_read_in_a_moment(kind: str) -> None:
    """No quadratic work: the time limit of a test is far more than this takes."""
    character = ODD[kind]
    size = len(character.encode("utf-8", "surrogatepass"))
    assert all(len(token) <= MAX_TOKEN_CHARS for token in words(character * (500_000 // size)))
    mixed = f"{character}a" * 10_000
    assert [token for token, _, _ in spans(mixed)] == words(mixed)
    assert [token for token, _, _ in part_spans(mixed)] == parts(mixed)
