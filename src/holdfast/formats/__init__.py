"""Provider shapes to messages and back, one module for each. No I/O, no provider's package."""
