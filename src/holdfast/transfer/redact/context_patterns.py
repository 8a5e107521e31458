"""Detectors for secrets that are recognised by their context.

Examples are `password=…`, `Authorization: …` and `://user:…@`. Only the secret is replaced, its
context stays. The words of the context are searched first (`anchors`), and the pattern is tried at
each; lookbehinds and `before` check what comes before.

A value after a name is in quotes, in escaped quotes (JSON inside JSON), or *bare*: a run of
characters that end a value in no language. A bare value may also be code or prose, so stricter
rules decide whether it is a secret. Where the line leaves no doubt that it sets a password (an
environment variable, a line of YAML, a connection string), a single word is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from holdfast.transfer.redact.command_patterns import COMMAND_RULES
from holdfast.transfer.redact.detector import Detector, SecretRule, anchored
from holdfast.transfer.redact.plausibility import (
    has_session_cookie,
    is_authorization,
    is_bare_password,
    is_bare_secret,
    is_credentials,
    is_key_block,
    is_quoted_password,
    is_random,
    is_secret,
    is_seed_phrase,
    is_single_word,
    is_strong_password,
    is_url_key,
    is_url_password,
    is_varied,
)

_QUOTE: Final = r"""(?:\\{0,7}["'`])"""
_EMPHASIS: Final = r"[*_]{0,3}"
# `"name": `, `name = `, `name: str = `, `name["key"] = `, `name := `, `name => `, `**name:** `,
# `<td>name</td><td>`, `name for the server is `, a heading with code below it; also in columns.
_ASSIGNMENT: Final = (
    rf"{_QUOTE}?\]?{_EMPHASIS}"
    r"(?:\s\([^()\n]{1,24}\)|\sfor\s(?:[\w.@'-]{1,48} ){0,4}[\w.@'-]{1,48})?"
    r"(?:\s{0,4}|[ \t]{5,64}(?==)|\.{2,32}+)"
    r"(?::\s{0,2}[a-z_][\w.|\[\] ]{0,40}?\s?=(?![=>])|:=|=>|={1,3}|:\s?[>|][-+]?(?=\n)"
    r"|[:\uff1a\u2192\u2013](?:</\w{1,8}>)?|(?<=\s)(?:is|ist|lautet|est|es):?(?=\s)"
    r"|</\w{1,8}>\s{0,8}<\w{1,8}>|\n(?=`))"
    rf"{_EMPHASIS}(?:[ \t]{{9,64}}+|\s{{0,8}})"
    r"""(?:[bfru]{1,2}(?=["']))?"""
)
_QUOTED: Final = (
    r"""(?P<q>["'`])(?P<quoted>(?:\\.|(?!(?P=q))[^\n\\]){1,4096}+)(?P=q)"""
    r"""|(?P<e>\\{1,7}["'])(?P<escaped>(?:(?!(?P=e))[^\n]){1,4096}+)(?P=e)"""
)
# Tokens contain no @, but precede one: `://token:…@host`.
_BARE_SECRET_CHAR: Final = r"""[^\s"'`,;<>(){}\[\]\\&|@]"""  # noqa: S105
_BARE_CHAR: Final = r"""[^\s"'`,;<>(){}\[\]\\&|]"""
_ELEMENT: Final = r"(?:>(?P<element>[^<>\s]{4,4096}+)(?=</))"  # <password>…</password>
_ATTRIBUTE: Final = r"""(?:["']>(?P<attribute>[^<>\s]{4,4096}+)(?=</))"""  # name="password">…</

_KEY_QUALIFIERS: Final = (
    *("api", "access", "secret", "private", "account", "preshared", "client", "tls"),
    *("master", "encryption", "signing", "auth", "service", "app", "admin", "hmac"),
    *("license", "licence", "unseal"),
)
_NON_SECRET_TOKENS: Final = (
    *("next", "page", "continuation", "cursor", "sync", "csrf", "xsrf"),
    *("pad", "eos", "bos", "unk", "mask", "sep", "cls"),
)
# Lookbehinds for these words, directly before or with one character in between.
_AFTER_KEY_QUALIFIER: Final = "|".join(f"(?<={word})|(?<={word}[_ .-])" for word in _KEY_QUALIFIERS)
_NOT_AFTER_NON_SECRET: Final = "".join(f"(?<!{word})(?<!{word}[_-])" for word in _NON_SECRET_TOKENS)
# `secret_key_base`, `client-key-data`, `password2`
_NAME_END: Final = r"(?:[_-]?(?:base|data|b64|base64|value))?(?:[ _-]?\d)?"
# Names of passwords (also German, Spanish, French, Portuguese, Chinese, Japanese and Russian), and
# of all other secrets.
_PASSWORD_NAMES: Final = (
    r"(?:(?:pass(?:word|wort|wd|phrase|code)|(?<![a-z])pass|(?<=require)pass|(?<![a-z])pwd"
    rf"|(?<=_)pwd|(?<![a-z0-9])pw(?![a-z])){_NAME_END}"
    r"|kennwort|contrase\u00f1a|(?<=mot de )passe ?|senha|\u5bc6\u7801|\u5bc6\u78bc"
    r"|\u30d1\u30b9\u30ef\u30fc\u30c9|\u0430\u0440\u043e\u043b\u044c)"
)
_PASSWORD_ANCHORS: Final = (
    *("pass", "pwd", "pw", "kennwort", "contrase\u00f1a", "senha", "\u5bc6\u7801"),
    *("\u5bc6\u78bc", "\u30d1\u30b9\u30ef\u30fc\u30c9", "\u0430\u0440\u043e\u043b\u044c"),
)
_SECRET_NAMES: Final = (
    rf"(?:(?:(?:{_AFTER_KEY_QUALIFIER})key|{_NOT_AFTER_NON_SECRET}token|(?<!\d:)secret|credentials?)"
    rf"{_NAME_END}|pass(?:word|wd)?[_-]?(?:hash|digest))"
)
_SECRET_ANCHORS: Final = ("key", "token", "secret", "credential", "pass")
# `--password …`, `--api-key …`
_OPTION: Final = "|".join(
    f"(?<=--{word})" for word in ("", "api-", "auth-", "access-", "secret-", "client-", "db-")
)
_SCHEME: Final = r"(?:basic|bearer|token|apikey|api-key|bot|digest)"
_KEY_NAMES: Final = r"(?:(?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1)"
# The lines of a key block whose end is missing.
_CUT_BLOCK: Final = (
    r"(?:\s*+(?:Proc-Type|DEK-Info|Version|Comment): [^\n\\]*+)*+"
    r"(?:(?:\s|\\{1,7}[nr])*+[A-Za-z0-9+/]{16,}+=*+)*+"
    r"(?:(?:\s|\\{1,7}[nr])*+[A-Za-z0-9+/]{1,15}={1,2})?"
)
# Whose password it is, in camel case: `adminPassword`, `trustStorePassword`
_OWNERS: Final = (
    r"(?:admin|root|db|database|(?:key|trust)?store|postgres|mysql|redis|smtp|mail|ldap|bind)"
)
_LINE_END: Final = r"(?=[ \t]*(?:#[^\n]*)?(?:\r?\n|\\{1,7}[nr]|\Z))"
_LOWER_WORD: Final = r"(?P<word>(?-i:[a-z]{6,64}+))"
_WORD_VALUE: Final = r"(?P<word>[^\s\"'`,;<>(){}\[\]\\&|#$]{6,128}+)"


def _named_value(name: str, options: str, letter: str) -> str:
    """Return a pattern for a value after a name, or after a command-line option."""
    bare = rf"(?P<bare>{letter}{{6,64}}+)(?![(\[])"
    option = rf"(?:{_OPTION}){options}[ =](?P<option>(?!-){letter}{{6,64}}+)"
    element = f"{_ELEMENT}|{_ATTRIBUTE}"
    return rf"(?:{name}(?:{_ASSIGNMENT}(?:{_QUOTED}|{bare})|{element})|{option})"


# -------------------------------------------------------------------------------------- tables

_MAX_ROWS: Final = 1_000
_TABLE: Final = re.compile(
    r"(?P<head>[^\n]{0,1000}+)\n[ \t]*\|?[ \t]*:?-{2,}[-:| \t]{0,1000}+\n"
    rf"(?P<rows>(?:[^\n|]{{0,1000}}+\|[^\n]{{0,4000}}+(?:\n|\Z)){{1,{_MAX_ROWS}}}+)"
)
_HEADING: Final = re.compile(
    r"[ *_`]*(?:[\w -]*(?:pass(?:word|wort|wd)?|pwd|secret|token)|api[ _-]?key)[ *_`]*",
    re.ASCII | re.IGNORECASE,
)
_CELL: Final = re.compile(r"[ \t*`]*([^\s|`]+)[ \t*`]*")


def _table_cells(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Return the secrets in those columns of a Markdown table whose heading names a secret."""
    text = match.string
    line = text.rfind("\n", max(0, match.start() - 1_000), match.start()) + 1
    heading = text[line : match.end("head")]
    columns = [at for at, cell in enumerate(heading.split("|")) if _HEADING.fullmatch(cell)]
    start = match.start("rows")
    for row in match["rows"].splitlines(keepends=True):
        cells = row.split("|")
        for column in columns:
            cell = _CELL.fullmatch(cells[column].rstrip()) if column < len(cells) else None
            if cell is not None and is_bare_password(cell[1]):
                first = start + sum(len(one) + 1 for one in cells[:column]) + cell.start(1)
                yield first, first + len(cell[1])
        start += len(row)


_WEB_KEY: Final = re.compile(r'"kty"[^{}]{0,4000}+\}')
_PRIVATE_MEMBER: Final = re.compile(r'"(?:d|k|p|q|dp|dq|qi)"\s?:\s?"([A-Za-z0-9_-]{40,4096}+)"')


def _web_key_members(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Return the private members of a JSON web key."""
    start = match.string.rfind("{", max(0, match.start() - 4_000), match.start())
    members = _PRIVATE_MEMBER.finditer(match.string, start, match.end()) if start >= 0 else ()
    return (member.span(1) for member in members)


_PASSWORD_RULES: Final = (
    anchored(
        _PASSWORD_ANCHORS,
        _named_value(_PASSWORD_NAMES, "pass(?:word|wd|phrase)?", _BARE_CHAR),
        is_quoted_password,
        accepts_bare=is_bare_password,
        rest=f"{_BARE_CHAR}*+",
    ),
    # An environment variable.
    anchored(
        ("pass", "pwd", "secret"),
        r"(?-i:PASS(?:WORD|WD|PHRASE)|(?<=_)PASS|(?<=_)PWD|(?<=_)SECRET)(?:_?\d)?="
        rf"{_WORD_VALUE}(?=[\s\"'`;&\\]|\Z)",
        is_single_word,
    ),
    # A line of YAML, or of a properties or ini file.
    anchored(
        ("pass", "pwd", "secret"),
        rf"(?:pass(?:word|wd|phrase)?|pwd|(?<=_)secret){_NAME_END}[ \t]?[=:][ \t]{{0,4}}"
        rf"{_LOWER_WORD}{_LINE_END}",
        is_single_word,
        before=rf"[ \t]*(?:- )?:?(?:[\w.-]*[._-])?(?:require|{_OWNERS})?",
    ),
    # A long option; without `=`, of a command that has others, too.
    anchored(
        ("pass",),
        rf"pass(?:word|wd|phrase)?={_LOWER_WORD}(?=\s|\Z)",
        is_single_word,
        before=r".*\s--[\w-]*",
    ),
    anchored(
        ("pass",),
        rf"pass(?:word|wd|phrase)? {_LOWER_WORD}(?=\s{{0,8}}(?:\n|\Z)|\s{{1,8}}(?:-|https?:))",
        is_single_word,
        before=r".*\s-{1,2}\w[\w-]*\s.*--[\w-]*",
    ),
    # `--master-user-password …`
    anchored(
        ("pass",),
        r"pass(?:word|wd|phrase)?[ =](?P<secret>(?!-)[^\s\"'`;|&]{6,128}+)",
        is_bare_password,
        before=r".*\s--[\w-]*-",
    ),
    # A connection string, the query of a URL, or a setting in an option: `--set db.password=…`
    anchored(
        ("pass", "pwd"),
        rf"(?:password|passwd|pass|pwd)={_LOWER_WORD}(?=[\s,;&'\"]|\Z)",
        is_single_word,
        before=r".*(?:[;&?]"
        r"|(?:\b|_)(?:host|user|username|uid|dbname|server)=[^\s,;&=]+[ ,](?:\w+_)?"
        rf"|\s-{{1,2}}\w[\w-]*[ =]['\"]?[\w.-]*|-D[\w.]*{_OWNERS})",
    ),
    # `user: bob, password: …`
    anchored(
        ("pass", "pwd"),
        rf"(?:password|passwd|pass|pwd):\s?{_LOWER_WORD}{_LINE_END}",
        is_single_word,
        before=r".*\b(?:user|username|login|host):\s?[^\s,;:]+[,;]?\s",
    ),
    # `setPassword("…")`, `auth=("bob", "…")`
    anchored(
        ("pass",),
        rf"(?:(?<=set)|(?<=with))password\(\s?{_QUOTE}(?P<secret>[^\s\"'`\\]{{6,128}}+)",
        is_bare_password,
    ),
    anchored(
        ("auth",),
        rf"auth\s?=\s?\(\s?{_QUOTE}[^\s\"'`\\]{{1,64}}+{_QUOTE},\s?{_QUOTE}"
        r"(?P<secret>[^\s\"'`\\]{4,128}+)",
        is_quoted_password,
    ),
    # `define("DB_PASSWORD", "…")`, `setProperty("keyStorePassword", "…")`
    anchored(
        ("pass", "pwd"),
        rf"{_PASSWORD_NAMES}{_QUOTE},\s{{0,16}}{_QUOTE}(?P<secret>[^\s\"'`\\]{{6,256}}+)",
        is_quoted_password,
        before=r".*(?:define|setproperty|user_pref|setenv|putenv|put|set)\(\s?[\"'][\w.]*",
    ),
    # `new mysqli(host, user, "…")`
    anchored(
        ("mysqli", "pdo(", "getconnection("),
        r"(?:mysqli|mysqli_connect|pdo|getconnection)\([^,()\n]{1,200}+,[^,()\n]{1,100}+,\s{0,4}"
        rf"{_QUOTE}(?P<secret>[^\s\"'`\\]{{4,128}}+)",
        is_quoted_password,
    ),
    anchored(
        ("securestring",),
        rf"(?<=convertto-)securestring(?: -string)? {_QUOTE}(?P<secret>[^\s\"'`\\]{{4,128}}+)",
        is_quoted_password,
    ),
    # Connection strings of Go and of Oracle.
    anchored(
        ("sql.open(", "dsn"),
        rf"(?:sql\.open\(\s?{_QUOTE}\w{{1,16}}{_QUOTE},\s?|dsn\s?[:=]{{1,2}}\s?){_QUOTE}?"
        r"[^\s:\"'`\\/@]{1,64}+:(?P<secret>[^\s\"'`@\\]{1,128}+)(?=@)",
        is_url_password,
    ),
    anchored(
        ("jdbc:oracle:",),
        r"jdbc:oracle:\w{2,8}:[^\s/:@]{1,64}+/(?P<secret>[^\s@\"'/]{1,128}+)(?=@)",
        is_url_password,
    ),
    # Directives of OpenLDAP, Redis, Gradle and routers.
    anchored(
        ("bindpw", "rootpw", "requirepass", "masterauth", "storepassword", "keypassword"),
        r"(?:bindpw|rootpw|requirepass|masterauth|(?:store|key)password)[ \t]{1,8}"
        r"(?:(?P<q>[\"'])(?P<quoted>[^\s\"'`\\]{6,128}+)(?P=q)|(?P<bare>[^\s\"'#]{6,128}+))",
        is_quoted_password,
        accepts_bare=is_bare_password,
        before=r"[ \t]*",
    ),
    anchored(
        ("password 7 ", "secret 7 ", "key 7 "),
        r"(?:password|secret|key) 7 (?P<secret>[0-9A-F]{8,64}+)(?!\w)",
        is_varied,
    ),
    # A wireless network.
    anchored(
        ("psk=",),
        r"psk=(?:\"(?P<quoted>[^\"\n]{8,63}+)\"|(?P<bare>[^\s\"'#]{8,64}+))",
        is_url_password,
        before=r"[ \t]*",
    ),
    # A script of `expect`.
    anchored(
        ("send ",),
        r"send (?:-- )?\\?\"(?P<secret>[^\s\"\\]{6,128}+)(?=\\{1,2}[rn])",
        is_strong_password,
    ),
    # The line after the name, and the word after it: only if it can be nothing else.
    anchored(
        ("pass",),
        r"pass(?:word|wort)?:?[ \t]*\n[ \t]*(?P<secret>[^\s]{6,128}+)[ \t]*(?=\n|\Z)",
        is_strong_password,
        before=r"[ \t*#-]*",
    ),
    anchored(
        ("pass",),
        r"(?<![a-z])pass(?:word|wort)?[ \t](?P<secret>[^\s\"'`,;<>(){}\[\]\\]{8,128}+)",
        is_strong_password,
    ),
    # `name: DB_PASSWORD`, and its value on the next line; `key="password" value="…"`
    anchored(
        ("pass", "pwd", "secret"),
        rf"(?:{_PASSWORD_NAMES}|secret){_QUOTE}?[\s,]{{1,24}}"
        rf"(?:{_QUOTE}type{_QUOTE}\s?:\s?{_QUOTE}\w{{1,16}}{_QUOTE}[\s,]{{1,24}})?{_QUOTE}?value{_QUOTE}?\s?[:=]\s?"
        rf"{_QUOTE}?(?P<secret>[^\s\"'`<>,\\]{{6,256}}+)",
        is_quoted_password,
    ),
    # A row of a Markdown table.
    anchored(
        ("pass", "pwd"),
        r"(?:pass(?:word|wort|wd)?|pwd)[*_` ]{0,8}\|[ \t]*(?P<b>[*`]{0,2})"
        r"(?P<word>[^\s|`*]{6,128}+)(?P=b)[ \t]*(?:\|[ \t]*)?(?=\n|\Z)",
        is_single_word,
        before=r"[ \t]*\|?[ \t*_`\w-]*",
    ),
    SecretRule(
        anchors=("pass", "pwd", "token", "key"),
        pattern=_TABLE,
        cells=_table_cells,
        skip_rejected=True,
    ),
    # `ALTER USER bob PASSWORD '…'`
    anchored(
        ("pass", "identified"),
        r"(?:password|identified(?: with \w{1,32})? by)\s{1,4}'(?P<quoted>[^'\n]{1,128}+)'",
        is_quoted_password,
        before=r".*\b(?:alter|create|grant|set)\b.*",
    ),
    # `.netrc`: the machine is a name with a dot, or each word has its line.
    anchored(
        ("machine",),
        r"machine[ \t]{1,8}[\w-]{0,64}+[.:]\S{1,255}+"
        r"(?:\s{1,8}(?:login|account)\s{1,8}\S{1,255}+){0,2}\s{1,8}password\s{1,8}(?P<secret>[^\s\\\"']{1,256}+)",
        is_url_password,
    ),
    anchored(
        ("login",),
        r"login[ \t]{1,8}\S{1,255}+(?:\s{1,8}account[ \t]{1,8}\S{1,255}+)?"
        r"(?:\s{0,8}\n\s{0,8}|(?<=anonymous)\s)password[ \t]{1,8}(?P<secret>[^\s\\\"']{1,256}+)",
        is_url_password,
        before=r"\s*(?:default\s+)?",
    ),
    # `.pgpass`
    anchored(
        (":543", ":6432:", ":*:"),
        r":(?:\d{4}|\*):[^\s:]{1,64}:[^\s:]{1,64}:(?P<secret>[^\s:\\\"']{4,128}+)(?=\s|\\|\Z)",
        is_url_password,
        before=r"[\w.*-]{1,255}(?::\*)?",
    ),
    anchored(
        ("phrase", "mnemonic"),
        r"(?:(?<=seed )phrase|(?<=recovery )phrase|mnemonic)"
        rf"{_ASSIGNMENT}{_QUOTE}?(?P<secret>[a-z]{{3,8}}(?: [a-z]{{3,8}}){{11,23}}+)(?![\w ])",
        is_seed_phrase,
    ),
)
_SECRET_RULES: Final = (
    anchored(
        _SECRET_ANCHORS,
        _named_value(_SECRET_NAMES, "(?:key|token|secret)", _BARE_SECRET_CHAR),
        is_secret,
        accepts_bare=is_bare_secret,
        rest=f"{_BARE_SECRET_CHAR}*+",
    ),
    # `api_key …`, and a row of a Markdown table.
    anchored(
        ("key", "token"),
        r"(?:(?<=api)key|(?<=api[ _-])key|(?<=auth)token|(?<=auth[ _-])token|(?<=access[ _-])token)"
        r"[*_`]{0,3}(?: {1,4}|\s{0,8}\|\s{0,8})[*`]{0,3}(?P<secret>[A-Za-z0-9_.~+/=-]{20,512}+)",
        is_url_key,
    ),
    # Docker's and npm's `auth`: a name and a password.
    anchored(
        ("auth",),
        rf"auth(?:ident)?{_QUOTE}?\s?[:=]\s?{_QUOTE}?(?P<secret>[A-Za-z0-9+/]{{8,4096}}+={{0,2}})",
        is_credentials,
    ),
    # Credentials of registries in Kubernetes, keys of Django and WordPress, Twilio's client, Vault.
    anchored(
        (".docker",),
        rf"\.docker(?:configjson|cfg){_QUOTE}?:\s{{1,4}}{_QUOTE}?"
        r"(?P<secret>[A-Za-z0-9+/]{40,}+={0,2})",
        is_varied,
    ),
    anchored(("django-insecure-",), r"django-insecure-(?P<secret>[^\s\"'\\]{20,100}+)", is_varied),
    anchored(
        ("define(",),
        r"define\(\s?'\w{0,32}_(?:KEY|SALT)',\s{0,16}'(?P<secret>[^'\n]{32,256}+)'",
        is_random,
    ),
    anchored(
        ('"ac', "'ac"),
        r"[\"']AC[0-9a-f]{32}[\"'],\s{0,8}[\"'](?P<secret>[0-9a-f]{32})(?=[\"'])",
        is_random,
    ),
    anchored(("vault login ",), r"vault login (?P<secret>[\w.-]{20,200}+)", is_url_key),
    SecretRule(anchors=('"kty"',), pattern=_WEB_KEY, cells=_web_key_members, skip_rejected=True),
)
_HASH_TEXT: Final = r"[A-Za-z0-9./+=_,:-]"

CONTEXT_DETECTORS: Final[tuple[Detector, ...]] = (
    Detector(
        name="private-key",
        finds="Private keys: PEM, OpenSSH, PGP and PuTTY, complete or cut off",
        rules=(
            anchored(
                ("-----begin",),
                rf"-----BEGIN {_KEY_NAMES}-----"
                rf"(?:((?:[^-]++|-(?!----))*+)-----END {_KEY_NAMES}-----|({_CUT_BLOCK}))",
                is_key_block,
                whole=True,
            ),
            anchored(
                ("private-lines:",),
                r"private-lines: ?\d{1,4}(?P<secret>(?:\s{1,4}[A-Za-z0-9+/]{16,128}+={0,2})++)",
                is_key_block,
            ),
        ),
    ),
    Detector(
        name="url-password",
        finds="Passwords and tokens in URLs: scheme://user:…@host, https://…@host",
        rules=(
            anchored(
                ("://",),
                r"""://[^\s/?#@:"'<>\\]{0,128}+:(?P<secret>[^\s/"'<>\\]{1,256})@(?=[\w\[])""",
                is_url_password,
            ),
            anchored(
                ("://",),
                r"""://(?P<secret>[^\s/?#@:"'<>\\]{20,512}+)@(?=[\w\[])""",
                is_url_key,
            ),
        ),
    ),
    Detector(
        name="url-key",
        finds="Keys and signatures in the query of a URL: ?key=…, &sig=…, X-Amz-Signature=…",
        rules=(
            anchored(
                ("key", "auth", "code=", "appid="),
                r"(?<=[?&;])(?:key|auth|code|appid)="
                r"(?P<secret>[A-Za-z0-9_.~+/%-]{16,4096}+={0,2})",
                is_url_key,
            ),
            anchored(
                ("sig",),
                r"(?:(?<=[?&;])sig|signature)=(?P<secret>[A-Za-z0-9_.~+/%-]{20,4096}+={0,2})",
                is_url_key,
            ),
        ),
    ),
    Detector(
        name="authorization",
        finds="Authorization headers, and bearer and basic credentials anywhere",
        rules=(
            anchored(
                ("auth", "bearer"),
                rf"(?:authorization{_QUOTE}?\]?\s{{0,4}}"
                rf"(?:[:=,]\s{{0,4}}{_QUOTE}?{_SCHEME}\s{{1,4}}|[:=]\s{{0,4}}{_QUOTE}?)"
                r"|(?<![a-z])bearer\s{1,4})(?P<secret>[\w.~+/:=-]{6,512}+)",
                is_authorization,
                rest=r"[\w.~+/:=-]*+",
            ),
            anchored(
                ("basic ", "key"),
                r"(?:(?<![a-z])basic|(?<=api)key) (?P<secret>[A-Za-z0-9+/]{8,4096}+={0,2})",
                is_credentials,
            ),
        ),
    ),
    Detector(
        name="cookie",
        finds="Cookie and Set-Cookie headers that contain a session token, and session cookies",
        rules=(
            anchored(
                ("cookie",),
                rf"cookie{_QUOTE}?\]?\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}?"
                r"""(?P<secret>[^\s"'`=;,\\]{1,128}=[^\r\n"'`\\]{1,512}+)""",
                has_session_cookie,
                once=True,
                rest=r"""[^\r\n"'`\\]*+""",
            ),
            anchored(
                ("sess",),
                r"(?:(?<=php)sessid|(?<=j)sessionid|(?<=_)session)=(?P<secret>[A-Za-z0-9%._-]{20,4096}+)",
                is_url_key,
            ),
        ),
    ),
    Detector(
        name="command-password",
        finds="Passwords on command lines: curl -u name:…, mysql -p…, sshpass -p …, redis-cli -a …",
        rules=COMMAND_RULES,
    ),
    Detector(
        name="password-hash",
        finds="Hashes of passwords: $2b$…, $argon2id$…, $6$…, pbkdf2_sha256$…, {SSHA}…",
        rules=(
            anchored(
                ("$",),
                r"\$(?:2[abxy]|argon2(?:id|i|d)|1|5|6|7|y|gy|apr1|sha1|scrypt|pbkdf2(?:-sha\d{1,3})?)"
                rf"\$(?:{_HASH_TEXT}{{1,64}}+\$){{0,4}}+[A-Za-z0-9./+=_-]{{20,256}}+",
                is_random,
                whole=True,
            ),
            anchored(("$",), r"\$[PH]\$[A-Za-z0-9./]{31}", is_random, whole=True),
            anchored(
                ("$",),
                rf"\$(?:{_HASH_TEXT}{{1,64}}+\$){{1,2}}+{_HASH_TEXT}{{20,256}}+",
                is_random,
                before=r".*(?:pbkdf2[_:][a-z0-9]{3,8}(?::\d{1,9})?|scrypt(?::\d{1,9}){3}"
                r"|scram-sha-\d{1,3})",
                whole=True,
            ),
            anchored(
                ("sha}",), r"(?<=\{s)sha\}(?P<secret>[A-Za-z0-9+/]{27,256}+={0,2})", is_random
            ),
            anchored(
                (":::",), r"[0-9a-f]{32}:[0-9a-f]{32}(?=:::)", is_random, reach=65, whole=True
            ),
        ),
    ),
    Detector(
        name="webhook",
        finds="Webhook URLs of Slack, Discord and Microsoft Teams",
        rules=(
            anchored(
                ("hooks.slack.com/",),
                r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[\w/+-]{20,}+)",
                is_random,
            ),
            anchored(("/webhooks/",), r"/webhooks/\d{15,20}/(?P<secret>[\w-]{50,}+)", is_random),
            anchored(
                (".office.com/webhook",),
                r"\.office\.com/webhook\w{0,2}/(?P<secret>[\w@/-]{40,}+)",
                is_random,
            ),
        ),
    ),
    Detector(
        name="azure-key",
        finds="Azure: keys in connection strings and lists of keys",
        rules=(
            anchored(
                ("key",),
                r"key(?:(?<=accountkey)|(?<=accesskey))\s?=\s?(?P<secret>[A-Za-z0-9+/%]{40,}+={0,2})",
                is_random,
            ),
            anchored(
                ("primary", "secondary", 'value"'),
                rf"(?:(?:primary|secondary)(?:readonly)?(?:master)?key|value){_QUOTE}:\s?"
                rf"{_QUOTE}(?P<secret>[A-Za-z0-9+/]{{86}}==)(?={_QUOTE})",
                is_random,
            ),
        ),
    ),
    Detector(
        name="aws-secret",
        finds="Amazon: secret access keys after their name",
        rules=(
            anchored(
                ("key",),
                r"key(?:(?<=secretaccesskey)|(?<=secret[_ -]access[_ -]key))"
                rf"(?:{_ASSIGNMENT}|\s|\s\[[^\]\n]{{0,24}}\]:\s){_QUOTE}?(?P<secret>[A-Za-z0-9/+]{{40}})(?![A-Za-z0-9/+])",
                is_random,
            ),
        ),
    ),
    Detector(
        name="password",
        finds='Passwords after their name: password=…, "passwd": "…", --password …, tables, .netrc',
        rules=_PASSWORD_RULES,
    ),
    Detector(
        name="secret",
        finds="Keys, tokens and secrets after their name: api_key=…, client_secret: …, --token …",
        rules=_SECRET_RULES,
    ),
)
