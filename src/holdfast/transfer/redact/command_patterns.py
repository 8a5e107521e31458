"""Rules for passwords on command lines.

The table lists facts: which programs take a password, and how. An option is searched first, and
then its program on the line before it, up to a pipe.
"""

from __future__ import annotations

from typing import Final

from holdfast.transfer.redact.detector import SecretRule, anchored
from holdfast.transfer.redact.plausibility import (
    is_bare_password,
    is_command_password,
    is_single_word,
)

_NAME: Final = r"[^\s:\"'`\\/%]{1,64}+"
_VALUE: Final = (
    r"(?:(?P<q>\\{0,7}[\"'])(?P<quoted>[^\"'\n\\]{1,256}+)(?P=q)"
    r"|(?P<bare>(?!-)[^\s\"'`;|&<>()\\]{1,256}+))"
)
# A name and a password, quoted together.
_PAIR: Final = r"\\{0,7}[\"'`]?[^\s:\"'`\\]{1,64}+:(?P<secret>[^\s\"'`\\]{1,256}+)"
# What an option begins with, the option, its value, and the programs that have it.
_OPTIONS: Final[tuple[tuple[str, str, str, str], ...]] = (
    (" -p", " -p", _VALUE, r"(?:mysql|mariadb)[\w-]{0,16}|7za?|rar"),
    (" -p", " -p ?", _VALUE, "sshpass"),
    (" -p", " -p ", _VALUE, r"(?:docker|podman|nerdctl|buildah|registry|az) login|mongo\w{0,16}"),
    (" -a", " -a ", _VALUE, "redis-cli"),
    (" -n", " -N ", _VALUE, "ssh-keygen"),
    (" -w", " -w ", _VALUE, r"ldap\w{1,16}"),
    (" -p", " -P ", _VALUE, r"(?:un)?zip|sqlcmd|mosquitto_[ps]ub|ipmitool"),
    ("pass", "(?:(?<=-store)|(?<=-key))pass ", _VALUE, "keytool|jarsigner"),
    ("pass", "pass:", _VALUE, "openssl"),
    (" /p:", " /p:", _VALUE, r"\w{0,4}freerdp"),
    ("/user:", rf"/user:{_NAME} ", _VALUE, "net use"),
    (" -u", rf" -U {_NAME}%", _VALUE, "smbclient"),
    ("sqlplus ", rf"sqlplus {_NAME}/", _VALUE, ""),
    ("pass", rf"(?<=ht)passwd -\w{{0,4}}b\w{{0,4}} \S{{1,255}}+ {_NAME} ", _VALUE, ""),
    ("rabbitmqctl ", rf"rabbitmqctl (?:add_user|change_password) {_NAME} ", _VALUE, ""),
    (" -u", " -u ?", _PAIR, "curl"),
    ("-user", "(?:(?<= -)|(?<= --proxy))-user[ =]", _PAIR, "curl"),
    (" -a", " -a ", _PAIR, "https?"),
    (" --auth", " --auth[ =]", _PAIR, "https?"),
)


def _rule(anchor: str, option: str, value: str, programs: str) -> SecretRule:
    return anchored(
        (anchor,),
        f"(?-i:{option}){value}",
        is_command_password,
        before=rf"(?:.*[^\w-])?(?:{programs})(?: [^|;]*)?" if programs else None,
    )


COMMAND_RULES: Final[tuple[SecretRule, ...]] = (
    *(_rule(*option) for option in _OPTIONS),
    # `echo … | sudo -S`, `echo … | docker login --password-stdin`, `echo name:… | chpasswd`
    anchored(
        ("echo ", "printf "),
        rf"(?:echo|printf) (?:-n )?(?:(?P<q>[\"'])(?:{_NAME}:)?(?P<quoted>[^\"'\n]{{1,128}}+)(?P=q)"
        rf"|(?:{_NAME}:)?(?P<bare>[^\s\"'`|;]{{1,128}}+)) ?\| ?"
        r"(?=sudo -S|kinit |(?:sudo )?chpasswd"
        r"|(?:sudo )?[\w-]{1,32} [^\n|;]{0,128}--password-stdin)",
        is_single_word,
    ),
    anchored(
        ("net user ",),
        rf"net user {_NAME} (?P<secret>(?![/*])[^\s\"'`]{{4,128}}+)(?= /|[ \t]*(?:\n|\Z))",
        is_bare_password,
    ),
)
