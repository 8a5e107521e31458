"""Messages that are larger than what a socket takes at once."""

import pytest

from holdfast import Message
from tests.postgres.conftest import OpenStore


@pytest.mark.parametrize("size", [1_000_000, 12_000_000])
def test_a_large_message_is_stored(open_store: OpenStore, size: int) -> None:
    """The driver sent a part of it and waited for an answer to all: it was never stored."""
    session = open_store().session("k")
    session.append(Message.user("x" * size), Message.user("behind it"))
    assert [len(message.text) for message in session.messages()] == [size, len("behind it")]
