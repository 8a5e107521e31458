"""Damage: finding it (`verify`), and carrying everything readable into a new store (`salvage`)."""
