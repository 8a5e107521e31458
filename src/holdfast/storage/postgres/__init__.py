"""Sessions in PostgreSQL: the same promises for many workers on many hosts."""
