"""Whether a candidate that a pattern matched is plausibly a secret.

A pattern finds candidates; these predicates reject those that are something else: a placeholder
(`YOUR_API_KEY`, `${TOKEN}`), words (`sk-learn-compatible`), a path, a date, a piece of code. An
ambiguous candidate counts as a secret only if its shape or the name before it is specific enough.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, urlsafe_b64decode
from typing import Final

_MIN_DISTINCT_CHARS: Final = 6  # Distinct ones; with fewer it is `xxxxxxxx` or `1111-2222`.
_MIN_PASSWORD_LENGTH: Final = 6
_MIN_COMMAND_PASSWORD_LENGTH: Final = 4
_MIN_SECRET_LENGTH: Final = 12
_MIN_URL_KEY_LENGTH: Final = 16
_MIN_LETTERS_ONLY_LENGTH: Final = 20  # Of a secret without a digit.
_JUDGED_CHARS: Final = 128  # The first characters decide on a long candidate.

_PLACEHOLDER: Final = re.compile(
    r"""(?ix) \$\w+\Z | \$[{(] | %\w+%\Z | \{(?![A-Z0-9+/]{32,}=*\}).*\}\Z | <.*>\Z
    | \[redacted: | ![a-z]+\Z | \?[a-z ]+\Z | [\W_]+\Z
    | (?:x{3,}|none|null|true|false|undefined|todo|tbd)\Z
    | (?:process\.env|os\.environ|os\.getenv|getenv|import\.meta|env[.:]|secrets?\.|vars?\.)""",
)
_PLACEHOLDER_WORDS: Final = (
    *("your-", "your_", "your ", "yourkey", "yourtoken", "yourpass", "yoursecret", "yourapi"),
    *("example", "placeholder", "changeme", "change-me", "change_me", "changeit", "redacted"),
    *("_here", "-here", "dummy", "xxxxxx", "***", "...", "…"),
)
# Names and sentences. Possessive, so that each run of letters is matched only once.
_WORDS: Final = re.compile(r"(?:[A-Z]?[a-z]{2,}+|[A-Z]{2,}+|[-_./: ])++")
_NUMBERED_WORDS: Final = re.compile(
    r"(?:(?:[A-Za-z]{2,}+\d{0,2}|[vV]?\d{1,4})(?:[-_./:]+|\Z))++", re.ASCII
)
_CODE: Final = re.compile(r"[A-Za-z_]\w*(?:\??\.[A-Za-z_]\w*)+", re.ASCII)
_NAMES: Final = re.compile(r"(?:[A-Z]++[a-z]*+|[a-z]{2,}+|\d{1,5}+|[_.])++", re.ASCII)
_PATH: Final = re.compile(r"(?i)[~.]{0,2}/|[a-z]:\\|\\\\|[a-z][a-z0-9+.-]*://|arn:|projects/")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]|\Z)")
_NUMBER: Final = re.compile(r"[-+]?[\d.,:/%]+[a-z]{0,3}", re.IGNORECASE)
_PASSPHRASE: Final = re.compile(r"[a-z]+(?: [a-z]+){3,7}")
_SYMBOL: Final = re.compile(r"[0-9!@#$%^*+~?]")
_LETTER: Final = re.compile(r"[^\W\d_]")
_SPACE: Final = re.compile(r"\s")
_DIGIT: Final = re.compile(r"\d")
_STRONG_SYMBOLS: Final = "!@#$%^*+~?&="
_SEED_LENGTHS: Final = frozenset({12, 15, 18, 21, 24})
# A value that contains one of these is the name of a variable, or stands for a password.
_NAME_WORDS: Final = ("pass", "pwd", "secret", "token", "wort", "woord", "change")
# What follows a password's name in forms, schemas and translations.
_ORDINARY_WORDS: Final = frozenset(
    {
        *("password", "passwort", "passwd", "passphrase", "pass", "pwd", "string", "text"),
        *("required", "optional", "hidden", "secret", "username", "invalid", "missing"),
        *("incorrect", "wrong", "unknown", "default", "disabled", "enabled", "prompt", "varchar"),
        *("boolean", "integer", "number", "object", "plain", "plaintext", "credentials", "oauth"),
        *("token", "empty", "basic", "bearer", "pw", "hashed", "encrypted", "expired", "changed"),
        *("postgres", "varying", "bcrypt", "argon", "scrypt", "base64", "keyword", "nullable"),
        *("updated", "visible", "masked", "generated", "random", "example", "adgangskode"),
        *("always", "never", "inherit", "external", "manual", "internal", "symbol", "confirmed"),
    }
)


def _is_placeholder(some: str) -> bool:
    if _PLACEHOLDER.match(some):
        return True
    lower = some.lower()
    return any(word in lower for word in _PLACEHOLDER_WORDS)


def is_random(body: str) -> bool:
    """True if the part of a key after its prefix looks random."""
    return is_varied(body) and not _WORDS.fullmatch(body[:_JUDGED_CHARS])


def is_varied(body: str) -> bool:
    """True unless this is a placeholder or a repetition of a few characters."""
    some = body[:_JUDGED_CHARS]
    return len(set(some)) >= _MIN_DISTINCT_CHARS and not _is_placeholder(some)


def is_quoted_password(value: str) -> bool:
    """True if a quoted value after a name like `password=` is a password."""
    some = value[:_JUDGED_CHARS]
    if not _may_be_password(some):
        return False
    if _SPACE.search(some):
        return _PASSPHRASE.fullmatch(some) is not None
    return not (some.isalpha() and (some.lower() in _ORDINARY_WORDS or some[0].isupper()))


def is_bare_password(value: str) -> bool:
    """True if a value without quotes after a name like `password=` is a password."""
    some = value[:_JUDGED_CHARS]
    if not _may_be_password(some) or _CODE.fullmatch(some) or _NUMBER.fullmatch(some):
        return False
    return _SYMBOL.search(some) is not None and _LETTER.search(some) is not None


def _may_be_password(some: str) -> bool:
    if len(some) < _MIN_PASSWORD_LENGTH or _is_placeholder(some):
        return False
    return not (_PATH.match(some) or _DATE.match(some))


def is_secret(value: str) -> bool:
    """True if a value after a name like `api_key=` is a key or a token."""
    some = value[:_JUDGED_CHARS]
    if len(some) < _MIN_SECRET_LENGTH or _SPACE.search(some):
        return False
    if _PATH.match(some) or _DATE.match(some) or _NUMBERED_WORDS.fullmatch(some):
        return False
    if _DIGIT.search(some):
        return _LETTER.search(some) is not None and is_random(some)
    mixed = not some.islower() and not some.isupper()
    return len(some) >= _MIN_LETTERS_ONLY_LENGTH and mixed and is_random(some)


def is_bare_secret(value: str) -> bool:
    """True if a value without quotes after a name like `api_key=` is a key and not code."""
    some = value[:_JUDGED_CHARS]
    is_code = _CODE.fullmatch(some) or some.startswith("_")
    return is_secret(value) and not (is_code and _NAMES.fullmatch(some))


def is_url_password(value: str) -> bool:
    """True if the text between a colon and an @ in a URL is a password."""
    return value.lower() not in _ORDINARY_WORDS and not _is_placeholder(value)


def is_command_password(value: str) -> bool:
    """True if a value on a command line, where a password is expected, is one."""
    return len(value) >= _MIN_COMMAND_PASSWORD_LENGTH and is_url_password(value)


def is_single_word(value: str) -> bool:
    """True if a value in a line that surely sets a password is one, though it may be a word."""
    if not _may_be_password(value) or _CODE.fullmatch(value) or _SPACE.search(value):
        return False
    lower = value.lower()
    return lower not in _ORDINARY_WORDS and not any(word in lower for word in _NAME_WORDS)


def is_strong_password(value: str) -> bool:
    """True if a value has letters of both cases, a digit and a symbol, as no word has."""
    kinds = (str.isdigit, str.isupper, str.islower, _STRONG_SYMBOLS.__contains__)
    some = value[:_JUDGED_CHARS].rstrip(".!?")
    return all(any(map(kind, some)) for kind in kinds) and is_bare_password(some)


def is_url_key(value: str) -> bool:
    """True if a value in a URL, or after the words `api key`, is a key."""
    some = value[:_JUDGED_CHARS]
    return len(some) >= _MIN_URL_KEY_LENGTH and _DIGIT.search(some) is not None and is_secret(some)


def is_glued_key(body: str) -> bool:
    """True if the body of a key whose prefix is inside a word is surely random."""
    some = body[:_JUDGED_CHARS]
    kinds = (str.isdigit, str.isupper, str.islower)
    return is_random(some) and all(any(map(kind, some)) for kind in kinds)


def is_seed_phrase(words: str) -> bool:
    """True if there are as many words as in the recovery phrase of a wallet."""
    return len(words.split()) in _SEED_LENGTHS


def is_encoded_key(value: str) -> bool:
    """True if a PEM block in base64 is a private key."""
    return b"PRIVATE KEY" in b64decode(value[:52])


def is_credentials(value: str) -> bool:
    """True if a value is a name and a password in base64, as after `Basic` in a header."""
    try:
        text = b64decode(value + "=" * (-len(value) % 4), validate=True).decode("utf-8")
    except ValueError:
        return False
    return ":" in text and text.isprintable()


def is_authorization(value: str) -> bool:
    """True if the value of an `Authorization` header is a token, or credentials in base64."""
    return is_secret(value) or (len(value) >= _MIN_PASSWORD_LENGTH and is_credentials(value))


def is_jwt(token: str) -> bool:
    """True if the first segment is the header of a JSON web token."""
    header = token.partition(".")[0]
    try:
        fields = json.loads(urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and not fields.keys().isdisjoint({"alg", "enc"})


def is_discord_token(token: str) -> bool:
    """True if the first of the three segments is a number: the id of a Discord user."""
    first = token.partition(".")[0]
    try:
        return urlsafe_b64decode(first + "=" * (-len(first) % 4)).isdigit()
    except ValueError:
        return False


_BASE64_LINE: Final = re.compile(r"[A-Za-z0-9+/]{32}")


def is_key_block(block: str) -> bool:
    """True if there is key data between the BEGIN and END lines."""
    return _BASE64_LINE.search(block) is not None


_COOKIE: Final = re.compile(r"[^\s=;,]+=([^\s;,]{16,})")


def has_session_cookie(header: str) -> bool:
    """True if the value of one of the cookies looks like a session token."""
    return any(is_secret(value) for value in _COOKIE.findall(header))


_MIN_PHONE_DIGITS: Final = 9
_MAX_PHONE_DIGITS: Final = 15


def is_phone(number: str) -> bool:
    """True if the text has as many digits as a phone number."""
    return _MIN_PHONE_DIGITS <= len(_DIGIT.findall(number)) <= _MAX_PHONE_DIGITS


def accept_any(_: str) -> bool:
    """True: the pattern alone is specific enough."""
    return True
