"""The search index: derived from the log, stored next to it, and rebuilt whenever it is lost.

It is in a file (`fts5`) or in tables (`tsvector`). Writes do not touch it. A search brings it up to
date (`indexer`), queries it, scans the log for what it lacks (`scan`), and reads from the log which
session shows a message (`visibility`). So a search finds every message that was acknowledged before
it began, whether the index is complete, partial or missing; the index only makes it faster. An
index that is corrupt, stale or of another store is discarded and rebuilt (`manager`).
"""
