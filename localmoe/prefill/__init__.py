"""How a prompt is read."""
