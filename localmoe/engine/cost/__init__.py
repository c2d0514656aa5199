"""What a plan costs in seconds: bytes over bandwidth, FLOPs over rate, overlap as the longest.

Owns the arithmetic from a machine's rates and a model's config to predictions that explain themselves.
Pure: knows neither how rates are measured nor how a plan is chosen.
"""
