"""Detectors for secrets that are recognised by their context.

Examples are `password=…`, `Authorization: …` and `://user:…@`. Only the secret is replaced, its
context stays. The words of the context are searched first (`anchors`), and the pattern is tried at
each; lookbehinds check what comes before.

A value after a name is in quotes, in escaped quotes (JSON inside JSON), or *bare*: a run of
characters that end a value in no language. A bare value may also be code or prose, so stricter
rules decide whether it is a secret.
"""

from __future__ import annotations

from typing import Final

from holdfast.transfer.redact.detector import Detector, anchored
from holdfast.transfer.redact.plausibility import (
    has_session_cookie,
    is_authorization,
    is_bare_password,
    is_bare_secret,
    is_key_block,
    is_quoted_password,
    is_random,
    is_secret,
    is_url_password,
)

_QUOTE: Final = r"""(?:\\{0,3}["'`])"""
# `"name": `, `name = `, `name: str = `, `name["key"] = `, `name := `, `name => `
_ASSIGNMENT: Final = (
    rf"{_QUOTE}?\]?\s{{0,4}}"
    r"(?::\s{0,2}[a-z_][\w.|\[\] ]{0,40}?\s?=(?![=>])|:=|=>|={1,3}|[:\uff1a]|(?<=\s)is:?(?=\s))"
    r"""\s{0,4}(?:[bfru]{1,2}(?=["']))?"""
)
_QUOTED: Final = (
    r"""(?P<q>["'`])(?P<quoted>(?:\\.|(?!(?P=q))[^\n\\]){1,4096}+)(?P=q)"""
    r"""|(?P<e>\\{1,3}["'])(?P<escaped>(?:(?!(?P=e))[^\n]){1,4096}+)(?P=e)"""
)
# Tokens contain no @, but precede one: `://token:…@host`.
_BARE_SECRET_CHAR: Final = r"""[^\s"'`,;<>(){}\[\]\\&|@]"""  # noqa: S105
_BARE_CHAR: Final = r"""[^\s"'`,;<>(){}\[\]\\&|]"""
_ELEMENT: Final = r"(?:>(?P<element>[^<>\s]{4,4096}+)(?=</))"  # <password>…</password>


_KEY_QUALIFIERS: Final = (
    *("api", "access", "secret", "private", "account"),
    *("master", "encryption", "signing", "auth", "service"),
)
_NON_SECRET_TOKENS: Final = (
    *("next", "page", "continuation", "cursor", "sync", "csrf", "xsrf"),
    *("pad", "eos", "bos", "unk", "mask", "sep", "cls"),
)
# Lookbehinds for these words, directly before or with one character in between.
_AFTER_KEY_QUALIFIER: Final = "|".join(f"(?<={word})|(?<={word}[_ -])" for word in _KEY_QUALIFIERS)
_NOT_AFTER_NON_SECRET: Final = "".join(f"(?<!{word})(?<!{word}[_-])" for word in _NON_SECRET_TOKENS)
# Names of passwords, and of all other secrets.
_PASSWORD_NAMES: Final = (
    r"(?:pass(?:word|wort|wd|phrase|code)|(?<![a-z])pass|(?<![a-z])pwd|(?<=_)pwd)"  # noqa: S105
)
_SECRET_NAMES: Final = (
    rf"(?:(?:{_AFTER_KEY_QUALIFIER})key|{_NOT_AFTER_NON_SECRET}token|secret|credentials?)"
)
# `--password …`, `--api-key …`
_OPTION: Final = "|".join(
    f"(?<=--{word})" for word in ("", "api-", "auth-", "access-", "secret-", "client-", "db-")
)
_SCHEME: Final = r"(?:basic|bearer|token|apikey|api-key|bot|digest)"
_KEY_NAMES: Final = r"(?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?"
# The lines of a key block whose end is missing.
_CUT_BLOCK: Final = (
    r"(?:\s*+(?:Proc-Type|DEK-Info|Version|Comment): [^\n\\]*+)*+"
    r"(?:(?:\s|\\[nr])*+[A-Za-z0-9+/]{16,}+=*+)*+(?:(?:\s|\\[nr])*+[A-Za-z0-9+/]{1,15}={1,2})?"
)


def _named_value(name: str, options: str, letter: str) -> str:
    """Return a pattern for a value after a name, or after a command-line option."""
    bare = rf"(?P<bare>{letter}{{6,64}}+)(?![(\[])"
    option = rf"(?:{_OPTION}){options} (?P<option>(?!-){letter}{{6,64}}+)"
    return rf"(?:{name}(?:{_ASSIGNMENT}(?:{_QUOTED}|{bare})|{_ELEMENT})|{option})"


CONTEXT_DETECTORS: Final[tuple[Detector, ...]] = (
    anchored(
        "private-key",
        "Private keys: PEM, OpenSSH and PGP blocks, complete or cut off",
        ("-----begin",),
        rf"-----BEGIN {_KEY_NAMES}-----"
        rf"(?:((?:[^-]++|-(?!----))*+)-----END {_KEY_NAMES}-----|({_CUT_BLOCK}))",
        is_key_block,
        whole=True,
    ),
    anchored(
        "url-password",
        "Passwords in URLs: scheme://user:…@host",
        ("://",),
        r"""://[^\s/?#@:"'<>\\]{0,128}+:(?P<secret>[^\s/"'<>\\]{1,256})@(?=[\w\[])""",
        is_url_password,
    ),
    anchored(
        "authorization",
        "Authorization headers, and bearer tokens anywhere",
        ("authorization", "bearer"),
        rf"(?:authorization{_QUOTE}?\]?\s{{0,4}}"
        rf"(?:[:=,]\s{{0,4}}{_QUOTE}?{_SCHEME}\s{{1,4}}|[:=]\s{{0,4}}{_QUOTE}?)"
        r"|(?<![a-z])bearer\s{1,4})(?P<secret>[\w.~+/:=-]{6,512}+)",
        is_authorization,
        rest=r"[\w.~+/:=-]*+",
    ),
    anchored(
        "cookie",
        "Cookie and Set-Cookie headers that contain a session token",
        ("cookie",),
        rf"cookie{_QUOTE}?\]?\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}?"
        r"""(?P<secret>[^\s"'`=;,\\]{1,128}=[^\r\n"'`\\]{1,512}+)""",
        has_session_cookie,
        once=True,
        rest=r"""[^\r\n"'`\\]*+""",
    ),
    anchored(
        "curl-password",
        "Passwords given to curl: -u name:…",
        ("curl ",),
        r"curl (?:[^\n|;]{0,256}? )?(?:-u|--user|-U|--proxy-user)[ =]?"
        rf"{_QUOTE}?[^\s:\"'`\\]{{1,64}}+:(?P<secret>[^\s\"'`\\]{{1,256}}+)",
        is_url_password,
    ),
    anchored(
        "slack-webhook",
        "Slack: webhook URLs",
        ("hooks.slack.com/",),
        r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[\w/+-]{20,}+)",
        is_random,
    ),
    anchored(
        "discord-webhook",
        "Discord: webhook URLs",
        ("/webhooks/",),
        r"/webhooks/\d{15,20}/(?P<secret>[\w-]{50,}+)",
        is_random,
    ),
    anchored(
        "azure-key",
        "Azure: keys in connection strings, shared access signatures",
        ("key", "sig="),
        r"(?:key(?:(?<=accountkey)|(?<=accesskey))\s?=\s?|sig(?<=[?&;]sig)=)"
        r"(?P<secret>[A-Za-z0-9+/%]{40,}+={0,2})",
        is_random,
    ),
    anchored(
        "aws-secret",
        "Amazon: secret access keys after their name",
        ("key",),
        r"key(?:(?<=secretaccesskey)|(?<=secret_access_key)|(?<=secret-access-key))"
        rf"{_ASSIGNMENT}{_QUOTE}?(?P<secret>[A-Za-z0-9/+]{{40}})(?![A-Za-z0-9/+])",
        is_random,
    ),
    anchored(
        "password",
        'Passwords after their name: password=…, "passwd": "…", --password …',
        ("pass", "pwd"),
        _named_value(_PASSWORD_NAMES, "pass(?:word|wd|phrase)?", _BARE_CHAR),
        is_quoted_password,
        accepts_bare=is_bare_password,
        rest=f"{_BARE_CHAR}*+",
    ),
    anchored(
        "secret",
        "Keys, tokens and secrets after their name: api_key=…, client_secret: …, --token …",
        ("key", "token", "secret", "credential"),
        _named_value(_SECRET_NAMES, "(?:key|token|secret)", _BARE_SECRET_CHAR),
        is_secret,
        accepts_bare=is_bare_secret,
        rest=f"{_BARE_SECRET_CHAR}*+",
    ),
)
