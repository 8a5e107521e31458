"""Redaction: replace the secrets in exported data by marks.

Named *detectors* find keys, tokens, private keys and passwords, and on request personal data. Each
secret is replaced by a mark such as `[redacted: openai key]`; the text around it is unchanged.

1. `plausibility`: whether a candidate with the shape of a secret is one;
2. `key_patterns`, `context_patterns`, `command_patterns`: the detectors and their rules, built by
   the functions of `detector`;
3. `decoded_text`: a text without its escapes and invisible characters;
4. `secrets`: finds the secrets in a text, fast for text without any;
5. `message`: redacts a whole message and lists the findings for a review;
6. `export_redactor`: redacts the lines of an export.
"""
