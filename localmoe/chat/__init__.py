"""What is said: messages and how they become token ids and back.

Owns the templates and the splitting of a stream into thought and answer.
Knows nothing of weights, engines or screens.
"""
