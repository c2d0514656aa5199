"""A model's way from the hub into the Hugging Face cache: what is needed, what is missing, and fetching just that.

Knows the hub, its files and the cache's layout, not what the tensors mean, nor who watches.
"""
