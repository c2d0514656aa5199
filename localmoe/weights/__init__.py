"""Where bytes rest: the one copy of a model's weights in memory.

Owns the arena, the layout of experts by layer and id, and the loader. Knows nothing of the arithmetic.
"""
