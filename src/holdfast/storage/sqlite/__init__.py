"""The SQLite backend: a store in one file, through apsw."""
