"""One SQLite file, through apsw."""
