"""`localmoe chats`: the chats that are kept, as commands."""
