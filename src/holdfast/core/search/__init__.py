"""The rules of a search, without I/O: what matches, and how well.

A text becomes tokens (`fold`, `tokenize`), a query becomes terms and filters (`query`), a message
becomes a document (`document`). `match` decides whether a document matches and computes its score;
`snippet` shows the matching part. An index must agree with `match`; it is only faster.
"""
