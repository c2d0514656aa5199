"""What is seen: the terminal chat.

Talks to an engine through its events only.
"""
