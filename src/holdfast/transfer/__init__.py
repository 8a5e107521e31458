"""Export and import: conversations as lines of JSON, to be read, kept and carried elsewhere."""
