"""What can be set in `holdfast.toml`, and what is in force here.

`schema` has every key, `places` where the files are, `reading` how one is read, and `loading` how
files, environment and options come together. Nothing here is read unless it is asked for.
"""
