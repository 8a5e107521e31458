"""What `holdfast prove` runs: workers that are killed, and the checker of what they stored."""
