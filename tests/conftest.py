"""Puts tests/ on the import path: shards and tiny make checkpoints for every room."""
