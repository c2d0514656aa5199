"""localmoe: local chat with DeepSeek-class Mixture-of-Experts models in their original weights."""

__version__ = "0.1.0"
