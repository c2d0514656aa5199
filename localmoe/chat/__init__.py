"""What is said: messages and how they become token ids and back.

Owns the templates, the splitting of a stream into thought and answer, and the chats that are kept.
Knows nothing of weights, engines or screens.
"""
