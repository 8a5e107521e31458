"""Rules, as pure functions over values: no I/O, and no knowledge of any database."""
