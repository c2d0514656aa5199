"""What the arithmetic is: the ops vocabulary and its dialects.

`reference` is the truth in eager torch, `cpu` records step programs for the native core, `gpu` has Triton kernels.
Knows nothing of models.
"""
