"""What the agent's model can do: tools made of functions, and those that come with it."""
