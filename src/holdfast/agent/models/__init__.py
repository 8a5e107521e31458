"""Models: what can be called, how it is chosen, and what it costs to get one here."""
