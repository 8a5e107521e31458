"""What is found: the decisions of a search, without a place to look in.

A text becomes tokens (`folding`, `words`), a question becomes terms and filters (`query`), a
message becomes a document (`documents`), `matching` decides whether the one is found by the other
and how well, and `snippets` shows where. An index has to agree with `matching`; it is only faster.
"""
