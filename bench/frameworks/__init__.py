"""The adapters beside the stores that their frameworks have, in the same run.

`catalog` lists the frameworks; each is in the environment that its adapter is tested in
(`tools.frameworks`), which has both. `drivers` has one script for each: `Own` is the framework's
store, `Adapter` is ours, and both are given the same messages by the same commands (`bench.peers`).
"""
