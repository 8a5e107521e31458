"""Attacks from outside: each is stopped, or ends in a typed error in bounded time."""
