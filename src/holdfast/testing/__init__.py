"""For people who write backends, or who want to see the promise kept: tests, faults, a checker."""
