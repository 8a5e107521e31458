"""One script for each framework: `Own` is its own store, `Adapter` is ours."""
