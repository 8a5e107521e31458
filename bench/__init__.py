"""The benchmarks: Holdfast beside the bare engine, in the same run.

Absolute times depend more on the disk than on the program. So wherever it makes sense the bare
engine (`bench.bare`: apsw, the same settings, the same bytes, nothing else) does the same work in
alternating rounds on the same disk, and what counts is the ratio. `python -m bench` prints each
figure with its bar; a bar that is missed is printed as missed.
"""
