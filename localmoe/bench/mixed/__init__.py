"""Suite mixed: prompts are read while answers are made, on the same cores and the same copy of the weights.

Owns what measures both phases at once. Does not know how either is computed.
"""
