"""Which rows are not decoded, because their bytes tell that they do not match."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from holdfast.clock import EPOCH
from holdfast.codec import decode, encode
from holdfast.operations.history import MessageFilter
from holdfast.storage.rows import MessageRow
from holdfast.values import Message, Role

_ROLES: frozenset[Role] = frozenset(get_args(Role))
_BODIES = {
    "plain": encode(Message.user("x"), EPOCH).body,
    "hidden": encode(Message.user("x", metadata={"hidden": True}), EPOCH).body,
    "says so": encode(Message.assistant('"hidden":true'), EPOCH).body,
    "surrogate": encode(Message.tool("c", "\ud800"), EPOCH).body,
    "escaped": b'{"role":"user","at":"2026-01-01T00:00:00Z","metadata":{"\\u0068idden":1}}',
    "in another order": b'{"at":"2026-01-01T00:00:00Z","role":"system"}',
    "with spaces": b'{ "role": "assistant", "at": "2026-01-01T00:00:00Z"}',
    "an escaped role": b'{"role":"\\u0075ser","at":"2026-01-01T00:00:00Z"}',
}


@pytest.mark.parametrize("name", _BODIES)
def test_what_the_bytes_do_not_tell_is_decoded(name: str) -> None:
    """Nothing that matches is excluded, however its JSON is written."""
    row = MessageRow.create(1, "m", None, _BODIES[name])
    message = decode(row.body, id="m", seq=1, turn_id=None, blob=lambda _: None)
    for role, hidden in product((*_ROLES, None), (None, True, False)):
        wanted = MessageFilter(_ROLES if role is None else frozenset({role}), hidden)
        assert not (wanted.excludes(row) and wanted.matches(message)), (role, hidden)


def test_what_the_first_bytes_tell_is_not_decoded() -> None:
    """Another role, or no word of hiding."""
    row = MessageRow.create(1, "m", None, _BODIES["plain"])
    assert MessageFilter(frozenset({"assistant"})).excludes(row)
    assert MessageFilter(_ROLES, hidden=True).excludes(row)
    assert not MessageFilter(frozenset({"user"}), hidden=False).excludes(row)
