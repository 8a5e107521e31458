"""One script for each store. It imports that store and `turns`, and nothing else of the project."""
