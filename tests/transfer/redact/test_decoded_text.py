"""Decoded texts: what escapes and invisible characters hide, and where it is in the original."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.transfer.redact.decoded_text import decode


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("pass\u200bword", "password"),
        ("\ufeffa\u00adb\u2060c\U000e0041d", "abcd"),
        ("\\u0041\\\\u0042\\x43\\/", "ABC/"),
        ("a\\u200bb", "ab"),
        ("a%3Db%5F", "a=b_"),
        ("&quot;a&#61;&amp;&#x41;", '"a=&A'),
        ("\x1b[1;31mred\x1b[0m", "red"),
    ],
)
def test_what_is_hidden_is_seen(text: str, decoded: str) -> None:
    seen = decode(text)
    assert seen is not None
    assert seen.text == decoded


@pytest.mark.parametrize(
    "text", ["", "plain", "100% & more", "C:\\new", "caf\u00e9 %C3%A9 \\u00e9", "&#0;"]
)
def test_text_that_hides_nothing_is_not_decoded(text: str) -> None:
    assert decode(text) is None


_PIECES = st.sampled_from(
    ["a", "b", "\u200b", "\\u0041", "%41", "&amp;", "\x1b[0m", "\\/", "\u00e9", "%"]
)


@given(st.lists(_PIECES, max_size=12).map("".join), st.data())
def test_offsets_lead_back(text: str, data: st.DataObject) -> None:
    """What is cut out of the original decodes to what was found in the decoded text."""
    seen = decode(text)
    if seen is None or not seen.text:
        return
    start = data.draw(st.integers(0, len(seen.text) - 1))
    end = data.draw(st.integers(start + 1, len(seen.text)))
    cut = text[seen.start(start) : seen.end(end)]
    again = decode(cut)
    assert (cut if again is None else again.text) == seen.text[start:end]
    assert seen.start(0) <= seen.start(start) < seen.end(end) <= len(text)


def test_json_and_urls_are_read_whatever_their_depth() -> None:
    text = "key/one"
    for _ in range(3):
        text = json.dumps(text).replace("/", "\\/").strip('"')
    seen = decode(text)
    assert seen is not None
    assert seen.text == "key/one"
    url = decode(quote("a=b&c", safe=""))
    assert url is not None
    assert url.text == "a=b&c"
