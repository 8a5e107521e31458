"""What users would take instead, beside Holdfast: each in an environment of its own.

`catalog` lists the stores with the versions they are pinned to, `tools.environments` installs
them, and `drivers` has one script for each, which imports nothing but that store. `driver` is the
process of such a script: it takes commands on its standard input (`driver_process` starts it). All
get the same messages (`turns`), are used as their documentation says, with their default settings,
and are measured in alternating rounds; `verdict` compares what they acknowledged with what they
kept.
"""
