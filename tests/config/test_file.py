"""A file is validated key by key: problems name the line, and never show a value."""

import os
from decimal import Decimal
from pathlib import Path

import pytest

from holdfast.config.file import read


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.toml"


def _wrong(file: Path, text: str) -> list[str]:
    file.write_text(text)
    return [str(problem).removeprefix(str(file)) for problem in read(file).problems]


def test_values_come_with_their_lines(file: Path) -> None:
    file.write_text(
        'trusted = ["~/work"]\nretry.attempts = 3 # few\n\n[ model ]\n"name" = "openai:gpt-9"\n'
        "[window]\n# threshold = 0.1\nmax_tokens = 8_000\n"
    )
    found = read(file)
    assert found.problems == ()
    assert found.values == {
        "trusted": ("~/work",),
        "retry.attempts": 3,
        "model.name": "openai:gpt-9",
        "window.max_tokens": 8000,
    }
    assert found.lines == {
        "trusted": 1, "retry.attempts": 2, "model.name": 5, "window.max_tokens": 8
    }  # fmt: skip


def test_prices_are_exact(file: Path) -> None:
    file.write_text('[prices."gpt-9"]\ninput = 1.1\noutput = 10\ncache_read = 0.11\n')
    [price] = read(file).values["prices"].values()  # type: ignore[attr-defined]
    assert price.input == Decimal("1.1")
    assert (price.output, price.cache_read, price.cache_write) == (10, Decimal("0.11"), None)


_PRICES = "prices.x: expected input and output, numbers from 0 to 1,000,000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[modle]\nname = 'x'", "1: unknown key modle; did you mean model?"),
        ("[retry]\natempts = 2", "2: unknown key retry.atempts; did you mean attempts?"),
        ("model = 'gpt'", "1: model must be a table: [model]"),
        ("[retry]\nattempts = 0", "2: retry.attempts: expected a whole number from 1 to 100"),
        ("[retry]\nattempts = true", "2: retry.attempts: expected a whole number from 1 to 100"),
        ("[retry]\nbase = nan", "2: retry.base: expected a number from 0 to 86,400"),
        ("[retry]\nmax = inf", "2: retry.max: expected a number from 0 to 86,400"),
        ("[retry]\nbroken = 'x'", "2: retry.broken: expected one of continue, anew"),
        ("[session]\nrestore = 1", "2: session.restore: expected true or false"),
        ("[session]\nstore = ''", "2: session.store: expected a string"),
        (
            "[retention]\nolder_than = '30'",
            "2: retention.older_than: expected a duration such as 12h, 30d, 8w, 6m or 1y",
        ),
        ("prices = 3", '1: prices must contain tables: [prices."MODEL"]'),
        ("[prices]\nx = 3", '2: prices.x must be a table: [prices."x"]'),
        ("[prices.x]\ninput = 3", f"1: {_PRICES}"),
        ("[prices.x]\ninput = -1\noutput = 1", f"1: {_PRICES}"),
        ("[prices.x]\ninput = nan\noutput = 1", f"1: {_PRICES}"),
        ("[prices.x]\ninput = inf\noutput = 1", f"1: {_PRICES}"),
        (
            "[prices.x]\ninput = 1\noutput = 1\ncash = 2",
            "4: unknown key prices.x.cash; valid keys: input, output, cache_read, cache_write",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(file: Path, text: str, said: str) -> None:
    assert _wrong(file, text) == [f", line {said}"]


def test_a_key_like_no_other_is_told_what_there_is(file: Path) -> None:
    [said] = _wrong(file, "zzz = 1")
    assert said.startswith(", line 1: unknown key zzz; valid keys: model, retry, window")


def test_what_is_no_toml_is_said_with_its_place(file: Path) -> None:
    [said] = _wrong(file, "[retry]\nattempts 3")
    assert said.startswith(": it is not valid TOML: ")
    assert "line 2" in said


@pytest.mark.parametrize(
    "text",
    [
        "[model]\napi_key = 'sk-canary'",
        "[model]\nkey = 'sk-canary'",
        "[model]\napi_key_env = 'sk-canary'",
        "[model]\nbase_url = 'https://user:sk-canary@host/v1'",
        "[model]\nbase_url = 'https://host/sk-canary@x'",
        "[model]\nname = ['sk-canary']",
        "[retry]\nattempts = 'sk-canary'",
        "[sk]\nx = 'sk-canary'",
        "token = 'sk-canary",
        "[prices.x]\ninput = 'sk-canary'\noutput = 1",
    ],
)
def test_a_secret_in_the_wrong_place_is_not_repeated(file: Path, text: str) -> None:
    [said] = _wrong(file, text)
    assert "canary" not in said


def test_a_key_is_told_where_it_belongs(file: Path) -> None:
    [said] = _wrong(file, "[model]\napi_key = 'x'")
    assert "set api_key_env to the variable" in said


def test_everything_wrong_is_told_and_the_rest_counts(file: Path) -> None:
    text = "[retry]\nattempts = 'x'\nbase = 2\nbsae = 1\n[session]\nscope = 'a'\n"
    assert len(_wrong(file, text)) == 2
    assert read(file).values == {"retry.base": 2.0, "session.scope": "a"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xfe", "it is not UTF-8 (byte 1)"),
        (b"#" * 300_000, "it is larger than 262,144 bytes"),
        (b"a = " + b"[" * 100_000, None),
        (b"a." * 200 + b"a = 1", "it has a line with more than 100 dots"),
        (b"[" + b"a." * 200 + b"a]", "it has a line with more than 100 dots"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    file: Path, data: bytes, said: str | None
) -> None:
    file.write_bytes(data)
    [problem] = read(file).problems
    assert said is None or problem.what == said


def test_a_byte_order_mark_does_no_harm(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[retry]\nattempts = 2\n")
    assert read(file).values == {"retry.attempts": 2}


def test_a_pipe_or_a_folder_does_not_hold_us_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    [problem] = read(tmp_path / "pipe").problems
    assert problem.what == "it is not a regular file"
    assert read(tmp_path).problems
    [problem] = read(tmp_path / "absent").problems
    assert problem.what == "it cannot be read: No such file or directory"


@pytest.mark.parametrize("filler", [" ", "[", "[ ", "a "])
def test_the_lines_of_a_long_text_are_found_in_linear_time(file: Path, filler: str) -> None:
    """In quadratic time a stranger's file would stop every command."""
    long = filler * (200_000 // len(filler))
    file.write_text(f'[model]\nname = """\n{long}"""\n[limits]\nrounds = 9\n')
    assert read(file).lines == {"limits.rounds": 5}
