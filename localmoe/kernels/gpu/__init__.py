"""The kernels of the GPU dialect, in Triton, each beside the function that checks its arguments and launches it.

Knows shapes and chips, nothing of models, slots or streams. What runs on which chip is in `tiles`.
"""
