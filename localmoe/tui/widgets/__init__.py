"""The pieces of the chat screen, one class a file."""
