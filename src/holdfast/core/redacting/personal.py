"""What tells of people: e-mail addresses and phone numbers. Only on request.

Conversations are full of both, and most are meant to be there. Phone numbers are found with a plus,
with a code in parentheses, with a leading zero, or grouped 3-3-4; other digits are left alone.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.core.redacting.detector import Detector
from holdfast.core.redacting.judging import is_anything, is_phone

_EMAIL: Final = r"(?<![\w.%+-])[\w.%+-]{1,64}+@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])"
_PHONE: Final = (
    r"(?<![\w.+/-])(?:\+\d(?:[ .()/-]{0,2}\d){8,14}"
    r"|\(\d{2,5}\)[ .-]?\d{2,4}(?:[ .-]?\d{2,4}){1,3}"
    r"|\d{3}([-. ])\d{3}\1\d{4}"
    r"|0\d{2,4}[ /-]\d{3,8}(?:[ -]\d{2,4}){0,3})(?![\w-])"
)

PERSONAL: Final[tuple[Detector, ...]] = (
    Detector(
        name="email",
        finds="E-mail addresses",
        pattern=re.compile(_EMAIL, re.ASCII),
        accepts=is_anything,
        whole=True,
        default=False,
    ),
    Detector(
        name="phone",
        finds="Phone numbers",
        pattern=re.compile(f"(?P<number>{_PHONE.replace(chr(92) + '1', chr(92) + '2')})", re.ASCII),
        accepts=is_phone,
        whole=True,
        default=False,
    ),
)
