"""Session stores for other frameworks, in their own words: one module for each framework.

Each implements the interface that its framework defines for stores of sessions, and uses the public
API of Holdfast alone. A framework's package is imported only by its own module. The store is opened
and closed by the caller. What a framework's message has and ours cannot hold is kept beside it
(`holdfast.formats.keep`): the framework gets its own dict back, and no text is stored twice.
"""
