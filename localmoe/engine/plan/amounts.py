"""Bytes and shares as a plan's sentences have them."""


def gigabytes(num_bytes: int) -> str:
    """654.1 GB; below 0.1 GB whole MB, below 1 MB whole KB, both rounded up."""
    if num_bytes >= 100_000_000:
        return f"{num_bytes / 1e9:,.1f} GB"
    unit, name = (1_000, "KB") if 0 < num_bytes <= 999_000 else (1_000_000, "MB")
    return f"{-(-num_bytes // unit):,} {name}"
