"""The agent's tools: tools made from functions, and the built-in ones."""
