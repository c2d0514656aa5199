"""What this machine does, measured: suites of cases, each a row beside its reference from the same run.

Owns the checkpoint that it measures with when none is given. Sees the engine through its face only.
"""
