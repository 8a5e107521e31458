"""What the tests of the agent share."""

from tests.agent.aimock import aimock, aimock_server

__all__ = ["aimock", "aimock_server"]
