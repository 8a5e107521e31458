"""The tests of a framework run in its own environment; `test_frameworks.py` starts them."""

collect_ignore = ["frameworks"]
