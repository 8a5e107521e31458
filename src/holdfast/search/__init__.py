"""Full-text search: the rules, and an index that is derived from the log and may be lost.

The rules do no I/O. A text becomes tokens (`fold`, `tokenize`), a query becomes terms and filters
(`query`), a message becomes a document (`document`). `match` decides whether a document matches and
computes its score; `snippet` shows the matching part. An index must agree with `match`; it is only
faster.

The index is in a file (`fts5`) or in tables (`tsvector`). Writes do not touch it. A search
(`engine`) brings it up to date (`indexer`), queries it, scans the log for what it lacks (`scan`),
and reads from the log which session shows a message (`visibility`). So a search finds every message
that was acknowledged before it began, whether the index is complete, partial or missing. An index
that is corrupt, stale or of another store is discarded and rebuilt (`manager`).
"""
