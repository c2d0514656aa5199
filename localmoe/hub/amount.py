"""Bytes as people read them."""


def amount(num_bytes: int) -> str:
    """688600000000 -> "688.6 GB"."""
    value = float(num_bytes)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"
