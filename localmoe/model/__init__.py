"""What the network is, written once against the ops vocabulary.

Owns the model config, the blocks from embedding to head and the latent cache.
Knows nothing of prompts, sampling or schedules.
"""
