"""Where bytes come from: the catalogue, checkpoints on disk, the tokenizer.

Knows file formats, not what the tensors mean. Imports no torch.
"""
