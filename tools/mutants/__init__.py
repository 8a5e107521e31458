"""Mutants of the product: small edits that remove a guard, and the tests that must fail."""
