"""The search index: derived from the log, kept beside it in a file or in tables, and may be lost.

Writes know nothing of it. Whoever searches first brings it up to date (`catching_up`), then asks it
(`kept`; in a `file`, in a `table`), looks through what it does not have yet (`scanning`), and lets
the log decide what may be seen (`views`). So a search finds everything that was acknowledged before
it began, whether the index is whole, half made, or not there at all; an index only makes it faster.
One that is damaged, of another store or out of date is thrown away and made anew (`keeping`).
"""
