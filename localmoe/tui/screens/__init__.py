"""Full screens and dialogues."""
