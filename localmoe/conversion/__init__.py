"""The same model in half the bytes: BF16 checkpoints to FP8 in 128 x 128 blocks, as DeepSeek's own files are.

Owns the rounding, the new files and how far a conversion has come. Knows no engine, and prints nothing.
"""
