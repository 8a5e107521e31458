"""What is sent to a model: the part of a history that fits, made legal.

A window is made in steps, each a function of values alone:

1. `choosing`: which messages count at all, and what a summary stands for;
2. `wording`: marks on what was cut off or when it was said, and our own marks taken out of replies;
3. `exchanging`: every call with exactly one result directly behind it;
4. `budgeting`: as many of the newest blocks as fit, whole;
5. `shaping`: who may speak after whom, ids and names in the provider's alphabet.

What comes out is written in the provider's shape by `holdfast.formats`. One bad message costs only
itself; nothing that is stored is changed.
"""
