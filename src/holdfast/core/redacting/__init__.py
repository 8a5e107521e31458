"""Secrets, taken out of what leaves the store.

Named *detectors* find keys, tokens, private keys and passwords, and on request what tells of
people. A mark such as `[redacted: openai key]` stands in place of each secret; all around it stays
as it was, and ordinary text is not touched.

1. `judging`: whether something in the shape of a secret is one;
2. `keys`, `contexts`, `personal`: the detectors, made as `detector` says;
3. `finding`: where the secrets in a text are, quickly where there are none;
4. `messages`: a whole message, and the list of what was done to it, for a review.
"""
