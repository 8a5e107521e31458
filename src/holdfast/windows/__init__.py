"""The window sent to a model: as much of a history as fits, made valid for the provider.

A window is built in steps, each a pure function:

1. `selection`: which messages count, and which a summary replaces;
2. `rendering`: marks for cut-off replies and timestamps; echoes of such marks are removed;
3. `pairing`: every call followed directly by exactly one result;
4. `budget`: as many of the newest blocks as fit, never a part of a block;
5. `roles`: the order of roles, and ids and names in the provider's alphabet.

`holdfast.formats` then encodes the messages for the provider. One bad message costs only itself;
nothing that is stored is changed.
"""
