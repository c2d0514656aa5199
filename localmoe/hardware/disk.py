"""The disks behind the paths that matter."""

import os
from pathlib import Path

from localmoe.hardware import files
from localmoe.hardware.machine import Disk
from localmoe.hardware.mounts import Mount, mount_of

NETWORK_FILESYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "virtiofs",
    "ceph",
    "lustre",
    "glusterfs",
    "beegfs",
    "fuse.sshfs",
}
MEMORY_FILESYSTEMS = {"tmpfs", "ramfs", "devtmpfs"}


def read_disk(root: str, purpose: str, path: Path) -> Disk:
    """Room and kind of the disk under `path`, or under the nearest folder above it that exists."""
    folder = _existing(root, path)
    total_bytes, free_bytes = _room(root, folder)
    mount = mount_of(root, folder)
    return Disk(purpose, str(path), total_bytes, free_bytes, mount.filesystem if mount else None, _kind(root, mount))


def _existing(root: str, path: Path) -> Path:
    """`path` or its nearest ancestor that exists, links followed."""
    for folder in (path, *path.parents):
        if (inside := Path(root) / str(folder).lstrip("/")).exists():
            return folder.resolve() if root == "/" else Path("/") / inside.relative_to(root)
    return Path("/")


def _room(root: str, folder: Path) -> tuple[int | None, int | None]:
    """Bytes in all, and those that an ordinary user can still write."""
    try:
        stat = os.statvfs(Path(root) / str(folder).lstrip("/"))
    except OSError:
        return None, None
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _kind(root: str, mount: Mount | None) -> str:
    if mount is None:
        return "unknown"
    if mount.filesystem in NETWORK_FILESYSTEMS:
        return "network"
    if mount.filesystem in MEMORY_FILESYSTEMS:
        return "memory"
    return _device_kind(root, Path(mount.source).name) if mount.source.startswith("/dev/") else "unknown"


def _device_kind(root: str, name: str, depth: int = 4) -> str:
    """Kind of block device `name`; a device made of others is as slow as the slowest kind that it is made of."""
    device = Path(root) / "sys/class/block" / name
    try:
        device = device.resolve(strict=True)
    except OSError:
        return "unknown"
    if (device / "partition").exists():
        device = device.parent
    parts = [part.name for part in (device / "slaves").iterdir()] if (device / "slaves").is_dir() else []
    if parts and depth:
        kinds = {_device_kind(root, part, depth - 1) for part in parts}
        return next((kind for kind in ("unknown", "rotating", "virtual", "SSD") if kind in kinds), "NVMe")
    return _plain_kind(device)


def _plain_kind(device: Path) -> str:
    if device.name.startswith("nvme"):
        return "NVMe"
    if device.name.startswith(("vd", "xvd", "loop")):
        return "virtual"
    if device.name.startswith(("zram", "ram")):
        return "memory"
    rotational = files.read_int(device, "queue/rotational")
    return "unknown" if rotational is None else "rotating" if rotational else "SSD"
