"""Each thing one can do to a store, as one function over one transaction.

A verb is made with everything it needs (checked and encoded before the transaction), and reads,
decides, writes: refusals are raised before the first write. The sync and the async API run the
same verbs.
"""
