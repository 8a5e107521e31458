"""The operations on a store: each is a function over one transaction.

An operation is created with everything it needs, validated and encoded before the transaction
begins. It reads, decides, then writes: refusals are raised before the first write. The sync and the
async API run the same operations.
"""
