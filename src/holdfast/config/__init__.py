"""Configuration: the keys of `holdfast.toml` and the values in effect.

`schema` defines every key, `paths` locates the files, `file` reads one, and `loader` merges files,
environment and options. No file is read on import.
"""
