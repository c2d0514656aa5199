"""How a token is made: one step for a batch of sessions, and the choice of the next token."""
