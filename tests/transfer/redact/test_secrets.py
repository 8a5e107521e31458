"""Secrets in texts are found completely in any context, and nothing else is changed."""

import re
from typing import Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.errors import BadQuery
from holdfast.transfer.redact.detector import MARK
from holdfast.transfer.redact.secrets import (
    ALL_NAMES,
    CATALOGUE,
    DEFAULT_NAMES,
    SecretSpan,
    detectors_named,
    find_secrets,
    redact_text,
)
from tests.model import strategies as some
from tests.transfer.redact import samples

_DEFAULT: Final = detectors_named()
_ALL: Final = detectors_named(ALL_NAMES)
_MARKS: Final = {detector.name: detector.mark for detector in CATALOGUE}
_PLACES: Final = {
    "alone": ("", ""),
    "in a sentence": ("The key is ", ", isn't it?"),
    "in quotes": ('x = "', '"'),
    "in JSON": ('{"a":"', '"}'),
    "in JSON in JSON": ('"{\\"a\\": \\"line\\n', '\\"}"'),
    "in a URL": ("https://host/x?a%3D", "&b=c"),
    "in an element": ("<a>", "</a>"),
    "in parentheses": ("(", ")"),
    "on a terminal": ("\x1b[31m", "\x1b[0m"),
    "slanted": ("_", " _"),
    "in Chinese": ("密码是", "。"),
    "behind a surrogate": ("\ud800", "\udfff"),
    "in a list": ("a,", ",b"),
    "on a line": ("first\n", "\nlast"),
}


def _named(cases: list[tuple[str, ...]]) -> list[str]:
    return [f"{at}-{case[0]}" for at, case in enumerate(cases)]


# ------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize(("name", "secret"), samples.KEYS, ids=_named([*samples.KEYS]))
def test_a_key_is_found_wherever_it_stands(name: str, secret: str) -> None:
    for place, (before, behind) in _PLACES.items():
        text, found = redact_text(before + secret + behind, _DEFAULT)
        assert text == before + _MARKS[name] + behind, place
        assert found == [SecretSpan(name, len(before), len(before + secret))], place


@pytest.mark.parametrize(("name", "secret"), samples.KEYS, ids=_named([*samples.KEYS]))
def test_a_key_is_found_by_its_own_detector_alone(name: str, secret: str) -> None:
    assert find_secrets(secret, detectors_named([name])) == [SecretSpan(name, 0, len(secret))]
    others = detectors_named(set(DEFAULT_NAMES) - {name})
    assert [one for one in find_secrets(secret, others) if one.detector == name] == []


@pytest.mark.parametrize(
    ("name", "before", "secret", "behind"), samples.CONTEXTS, ids=_named([*samples.CONTEXTS])
)
def test_a_secret_is_told_by_what_stands_around_it(
    name: str, before: str, secret: str, behind: str
) -> None:
    """Only the secret is replaced; its context stays."""
    for start, end in [("", ""), ("Look:\n", "\nThat is all."), ("快递员 ", " 包裹")]:
        text, found = redact_text(start + before + secret + behind + end, _DEFAULT)
        assert text == start + before + _MARKS[name] + behind + end
        assert [one.detector for one in found] == [name]


@pytest.mark.parametrize("kind", samples.ORDINARY)
def test_ordinary_text_is_left_alone(kind: str) -> None:
    text = samples.ORDINARY[kind]
    assert redact_text(text, _DEFAULT) == (text, [])
    assert redact_text(f"{text}\n{text} {text}", _DEFAULT)[1] == []


@pytest.mark.parametrize(("name", "before", "secret", "behind"), samples.PERSONAL)
def test_what_tells_of_people_is_found_on_request(
    name: str, before: str, secret: str, behind: str
) -> None:
    text = before + secret + behind
    assert redact_text(text, _DEFAULT) == (text, [])
    assert redact_text(text, detectors_named([name]))[0] == before + _MARKS[name] + behind


@pytest.mark.parametrize("text", samples.IMPERSONAL)
def test_other_numbers_and_names_tell_of_nobody(text: str) -> None:
    assert redact_text(text, _ALL) == (text, [])


def test_every_detector_has_a_case() -> None:
    cases = [*samples.KEYS, *samples.CONTEXTS, *samples.PERSONAL]
    assert {case[0] for case in cases} == set(ALL_NAMES)
    assert len(cases) + len(samples.ORDINARY) >= 100


# ----------------------------------------------------------------------------------------- names


def test_unless_asked_for_nothing_looks_for_people() -> None:
    assert set(ALL_NAMES) - set(DEFAULT_NAMES) == {"email", "phone"}
    assert len(set(ALL_NAMES)) == len(ALL_NAMES)
    assert [detector.name for detector in detectors_named(reversed(ALL_NAMES))] == list(ALL_NAMES)
    assert detectors_named() == detectors_named(DEFAULT_NAMES)


def test_every_detector_says_what_it_finds_and_leaves_a_mark() -> None:
    for detector in CATALOGUE:
        assert detector.finds
        assert re.fullmatch(r"\[redacted: [a-z ]+\]", detector.mark)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        BadQuery, match=r"no detector 'opanai-key'; there are: .*openai-key"
    ) as told:
        detectors_named(["jwt", "opanai-key"])
    assert all(name in str(told.value) for name in ALL_NAMES)


def test_one_name_is_not_taken_for_its_letters() -> None:
    assert [detector.name for detector in detectors_named("jwt")] == ["jwt"]


def test_no_detectors_find_nothing() -> None:
    assert redact_text(samples.KEYS[0][1], detectors_named([])) == (samples.KEYS[0][1], [])


# -------------------------------------------------------------------------------------- overlaps


def test_of_two_at_one_place_the_more_telling_one_counts() -> None:
    """A key after a name is reported by its prefix, unless the value is longer."""
    key = samples.KEYS[0][1]
    assert redact_text(f"api_key={key}", _DEFAULT)[0] == "api_key=[redacted: openai key]"
    assert redact_text(f"api_key={key}/x", _DEFAULT)[0] == "api_key=[redacted: secret]"


def test_what_overlaps_is_joined_so_that_nothing_of_either_is_left() -> None:
    """The header ends at the exclamation mark, and the token within it does not."""
    text = f"Bearer {samples.drawn(20)}/token={samples.drawn(21)}!{samples.drawn(22)} x"
    assert redact_text(text, _DEFAULT)[0] == "Bearer [redacted: authorization] x"
    assert redact_text(text, detectors_named(["secret"]))[0].endswith("/token=[redacted: secret] x")


def test_several_secrets_are_found_in_their_order() -> None:
    pieces = [secret for _, secret in samples.KEYS]
    text, found = redact_text("\n".join(pieces), _DEFAULT)
    assert text == "\n".join(_MARKS[name] for name, _ in samples.KEYS)
    assert [one.detector for one in found] == [name for name, _ in samples.KEYS]


def test_a_long_value_is_taken_out_to_its_end() -> None:
    long = samples.drawn(20_000)
    assert redact_text(f"token={long}&a=b", _DEFAULT)[0] == "token=[redacted: secret]&a=b"
    assert redact_text(f"Bearer {long}", _DEFAULT)[0] == "Bearer [redacted: authorization]"


def test_a_private_key_that_was_cut_off_is_taken_out_as_far_as_it_goes() -> None:
    cut = samples.pem()[:120]
    assert redact_text(f"{cut}\n[truncated]", _DEFAULT)[0] == "[redacted: private key]\n[truncated]"


# ------------------------------------------------------------------------------------ properties

_SECRETS: Final = st.sampled_from(samples.KEYS)
_BREAKS: Final = st.sampled_from([" ", "\n", '"', "'", ", ", "<", "(", "\t", "\\n", "。"])


@given(st.lists(st.tuples(some.texts, _BREAKS, _SECRETS, _BREAKS), max_size=4), some.texts)
def test_planted_secrets_are_found_and_nothing_of_them_is_left(
    planted: list[tuple[str, str, tuple[str, str], str]], last: str
) -> None:
    text = "".join(a + b + secret + c for a, b, (_, secret), c in planted) + last
    redacted, found = redact_text(text, _DEFAULT)
    for _, _, (_, secret), _ in planted:
        assert secret not in redacted
        assert secret[-12:] not in redacted
    assert len(found) >= len(planted) or not planted
    assert redact_text(redacted, _DEFAULT) == (redacted, [])


@given(
    st.text(st.characters(exclude_categories=()), max_size=200), st.sampled_from(samples.CONTEXTS)
)
def test_what_is_found_is_in_order_apart_and_all_that_changes(
    around: str, case: tuple[str, str, str, str]
) -> None:
    text = around + "\n" + "".join(case[1:]) + around
    redacted, found = redact_text(text, _ALL)
    ends = [0]
    left = []
    for one in found:
        assert ends[-1] <= one.start < one.end <= len(text)
        left.append(text[ends[-1] : one.start] + _MARKS[one.detector])
        ends.append(one.end)
    assert "".join(left) + text[ends[-1] :] == redacted
    assert find_secrets(text, _ALL) == found


_BITS: Final = st.sampled_from(
    [
        *(
            "password",
            "=",
            ":",
            '"',
            "'",
            "\\",
            " ",
            "\n",
            "token",
            "://",
            "@",
            "a",
            "1",
            "-",
            "sk-",
        ),
        *("api_key", "Bearer ", "Authorization", "Cookie", ";", MARK, "]", "[", "hunter2", "is "),
        *(secret for _, secret in samples.KEYS[::6]),
        samples.drawn(20),
        "-----BEGIN PRIVATE KEY-----",
    ]
)


@given(st.lists(_BITS, max_size=14).map("".join))
def test_redacting_again_changes_nothing(text: str) -> None:
    redacted, _ = redact_text(text, _ALL)
    assert redact_text(redacted, _ALL) == (redacted, [])


@given(st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz .,\n"), max_size=300))
def test_plain_words_are_never_changed(text: str) -> None:
    assume("pass" not in text)
    assert redact_text(text, _ALL) == (text, [])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("piece", samples.NEAR_MISSES, ids=lambda piece: repr(piece[:24]))
def test_no_text_takes_long(piece: str) -> None:
    """Repeated, it takes linear time: quadratic time would be minutes."""
    text = piece * (100_000 // len(piece))
    redacted, _ = redact_text(text, _ALL)
    assert len(redacted) > 0
