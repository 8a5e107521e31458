"""Finding damage (`verify`), and copying everything readable into a new store (`salvage`)."""
