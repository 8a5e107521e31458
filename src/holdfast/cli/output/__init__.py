"""Output of the command: text for terminals and pipes, and JSON for programs."""
