"""Conversations that stay: one SQLite file of chats, each a tree of turns with one branch in use.

Owns the file, its migrations, search and what is exported. Knows nothing of engines or screens, only of events.
"""
