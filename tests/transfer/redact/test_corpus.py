"""What redaction finds of the corpus, that it changes no harmless text, and how much work it is."""

from __future__ import annotations

import base64
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from holdfast.transfer.redact.secrets import ALL_NAMES, Detectors, detectors_named, redact_text
from tests.transfer.redact import corpus, samples
from tests.transfer.redact.harmless import HARMLESS

_USING: Final = detectors_named()
_DOCS: Final = Path(__file__).parents[3] / "docs"
# Nothing says which of the words is the password, or that there is one.
_NOT_FOUND: Final = [
    *("PIN and password are 1234 and ", "the db password is ", "login('bob', '", "creds: bob / "),
    *("bob:", "session_cookie=", "pin: ", "2FA backup codes: ", "Das Passwort lautet: "),
    *('DB_PASSWORD="', "<secret>", "relayhost creds: [smtp.test]:587 bob@x.test:"),
    *("Wi-Fi: Home, WPA2 key: ", "snmp-server community ", "VPN login bob / password "),
    'spawn ssh bob@h; send "',
]


def test_the_corpus_is_large_and_every_case_once() -> None:
    assert len(corpus.SECRETS) >= 200
    assert len(HARMLESS) >= 150
    assert [text for text, n in Counter(c.text for c in corpus.SECRETS).items() if n > 1] == []
    assert len(set(HARMLESS)) == len(HARMLESS)


@pytest.mark.parametrize("kind", sorted({case.kind for case in corpus.SECRETS}))
def test_every_secret_is_found_but_those_listed(kind: str) -> None:
    cases = [case for case in corpus.SECRETS if case.kind == kind]
    kept = [
        case.before for case in cases if corpus.is_kept(case, redact_text(case.text, _USING)[0])
    ]
    assert [before for before in kept if before not in _NOT_FOUND] == []


def test_what_is_listed_as_not_found_is_not_found() -> None:
    assert [case.before for case in corpus.kept_secrets()] == _NOT_FOUND


def test_no_harmless_text_is_changed() -> None:
    assert corpus.changed_texts() == []


def test_no_secret_takes_its_neighbours_with_it() -> None:
    """The lines before and after it stay."""
    for case in corpus.SECRETS:
        text = f"The first line.\n{case.text}\nThe last line.\n"
        redacted, _ = redact_text(text, _USING)
        assert redacted.startswith("The first line.\n"), case
        assert redacted.endswith("The last line.\n"), case


def test_redacting_the_corpus_again_changes_nothing() -> None:
    for case in corpus.SECRETS:
        redacted, _ = redact_text(case.text, _USING)
        assert redact_text(redacted, _USING) == (redacted, []), case


def test_the_corpus_prints_its_figures(capfd: pytest.CaptureFixture[str]) -> None:
    corpus.print_figures()
    told = capfd.readouterr().out
    assert re.fullmatch(
        rf"secrets kept: {len(_NOT_FOUND)} of {len(corpus.SECRETS)}\n"
        rf"harmless texts changed: 0 of {len(HARMLESS)}\n",
        told,
    )


def test_the_documentation_states_the_figures() -> None:
    told = " ".join((_DOCS / "redaction.md").read_text().split())
    assert f"{len(corpus.SECRETS)} secrets and {len(HARMLESS)} harmless texts" in told
    assert f"Of the secrets {len(_NOT_FOUND)} are kept, and no harmless text is changed" in told


# ------------------------------------------------------------------------------------------ work


class _Counted:
    """A pattern that counts where it is tried."""

    def __init__(self, pattern: re.Pattern[str], tries: Counter[str]) -> None:
        self._pattern, self._tries = pattern, tries

    def match(self, *given: Any) -> re.Match[str] | None:  # noqa: ANN401
        self._tries["tried"] += 1
        return self._pattern.match(*given)

    def finditer(self, text: str) -> Any:  # noqa: ANN401
        return self._pattern.finditer(text)


def _counted(using: Detectors, tries: Counter[str]) -> Detectors:
    return tuple(
        msgspec.structs.replace(
            detector,
            rules=tuple(
                msgspec.structs.replace(rule, pattern=_Counted(rule.pattern, tries))
                for rule in detector.rules
            ),
        )
        for detector in using
    )


def test_ten_times_the_text_is_ten_times_the_work() -> None:
    tries: Counter[str] = Counter()
    using = _counted(detectors_named(ALL_NAMES), tries)
    text = "\n".join([*(case.text for case in corpus.SECRETS[::7]), *HARMLESS[::5]]) + "\n"
    redact_text(text, using)
    once = tries.total()
    tries.clear()
    redact_text(text * 10, using)
    assert once > 1_000
    assert tries.total() <= 12 * once


def test_text_without_secrets_is_hardly_worked_at() -> None:
    """Patterns are tried where their words are, not at every character."""
    tries: Counter[str] = Counter()
    text = "The quick brown fox jumps over the lazy dog, and nobody minds. " * 1_000
    redact_text(text, _counted(_USING, tries))
    assert tries.total() == 0


# -------------------------------------------------------------------------------- found in context


@pytest.mark.parametrize(
    ("before", "secret", "behind", "detector"),
    [
        ("machine git.test login bob password ", "Zx9qT4wLm", "\n", "password"),
        ("db.test:5432:shop:bob:", "Zx9qT4wLm", "\n", "password"),
        ("**Password:** ", "Zx9qT4wLm", "\n", "password"),
        ("| a | password |\n|---|---|\n| b | ", "Zx9qT4wLm", " |\n", "password"),
        ("DB_PASSWORD=", "swordfish", "\n", "password"),
        ("  db_password: ", "swordfish", "\n", "password"),
        ("mysql -u root -p", "swordfish", " shop", "command-password"),
        ("sshpass -p ", "swordfish", " ssh host", "command-password"),
        ("echo ", "swordfish", " | sudo -S true", "command-password"),
        ("https://", samples.drawn(40), "@host/a.git", "url-password"),
        ("https://a.test/x?key=", samples.drawn(39), "&y=1", "url-key"),
        ("https://a.test/x?X-Amz-Signature=", samples.drawn(64, samples.HEX), "&y=1", "url-key"),
        ('{"auths": {"r": {"auth": "', "Ym9iOnN3b3JkZmlzaC03", '"}}}', "secret"),
    ],
)
def test_only_the_secret_is_replaced(before: str, secret: str, behind: str, detector: str) -> None:
    redacted, found = redact_text(before + secret + behind, _USING)
    assert redacted == f"{before}[redacted: {detector.replace('-', ' ')}]{behind}"
    assert [one.detector for one in found] == [detector]


def test_two_columns_of_a_table() -> None:
    """Each cell by itself; the others stay."""
    rows = "| bob | Zx9qT4wLm | " + samples.drawn(32) + " |\n| ann | none | x |\n"
    table = "| user | password | token |\n| --- | --- | --- |\n" + rows + "\nPassword: none\n"
    assert redact_text(table, _USING)[0] == (
        "| user | password | token |\n| --- | --- | --- |\n"
        "| bob | [redacted: password] | [redacted: password] |\n| ann | none | x |\n"
        "\nPassword: none\n"
    )


@pytest.mark.parametrize("length", range(50, 70))
def test_a_key_in_base64_may_be_cut_anywhere(length: int) -> None:
    key = base64.b64encode(samples.pem("ENCRYPTED PRIVATE KEY").encode()).decode()[:length]
    assert (redact_text(key, _USING)[0] == "[redacted: encoded key]") == (length >= 54)
