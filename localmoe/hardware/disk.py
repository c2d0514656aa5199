"""The disks behind the paths that matter."""

import os
from pathlib import Path

from localmoe.hardware import files
from localmoe.hardware.deadline import answer_within
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


_VIRTUAL_MODELS = ("virtual", "qemu", "vbox")
PATIENCE_S = 2.0  # a network disk whose server is gone never answers
CLASS = "/sys/class/block"


def read_disk(root: str, purpose: str, path: Path) -> tuple[Disk, dict[str, str]]:
    """Room and kind of the disk under `path`, or under the nearest folder above it that exists; why not, by word."""
    try:
        return answer_within(PATIENCE_S, lambda: _read(root, purpose, path))
    except Exception as error:  # noqa: BLE001 - one odd disk must not hide the others; it is reported
        why = str(error) if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
        nothing = Disk(purpose, str(path), None, None, None, "unknown")
        return nothing, {f"disk {purpose} room": why, f"disk {purpose} kind": why}


def _read(root: str, purpose: str, path: Path) -> tuple[Disk, dict[str, str]]:
    folder, unknown = _existing(root, path), dict[str, str]()
    total_bytes = free_bytes = None
    try:
        total_bytes, free_bytes = _room(root, folder)
    except OSError as error:
        unknown[f"disk {purpose} room"] = f"{folder}: {error.strerror}"
    mount = mount_of(root, folder)
    kind = _kind(root, mount)
    if kind == "unknown":
        unknown[f"disk {purpose} kind"] = _why_no_kind(root, mount)
    return Disk(purpose, str(path), total_bytes, free_bytes, mount.filesystem if mount else None, kind), unknown


def _existing(root: str, path: Path) -> Path:
    """`path` or its nearest ancestor that exists, links followed."""
    path = path.absolute()
    for folder in (path, *path.parents):
        if files.exists(root, str(folder)):
            return Path(os.path.realpath(folder)) if root == "/" else Path("/") / folder
    return Path("/")


def _room(root: str, folder: Path) -> tuple[int, int]:
    """Bytes in all, and those that an ordinary user can still write."""
    stat = os.statvfs(files.inside(root, str(folder)))
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _kind(root: str, mount: Mount | None) -> str:
    if mount is None:
        return "unknown"
    if mount.filesystem in NETWORK_FILESYSTEMS:
        return "network"
    if mount.filesystem in MEMORY_FILESYSTEMS:
        return "memory"
    device = _device(root, mount)
    return _device_kind(root, device) if device else "unknown"


def _why_no_kind(root: str, mount: Mount | None) -> str:
    if mount is None:
        return files.why_not(root, "/proc/self/mountinfo", "mount above it")
    if mount.filesystem == "overlay":
        return "it is a container's overlay, which does not show the disk under it"
    return f"the kernel does not show what {mount.source} ({mount.filesystem}) lies on"


def _device(root: str, mount: Mount) -> str | None:
    """The folder of the block device that is mounted. The kernel does not know names such as /dev/root."""
    if files.exists(root, by_number := f"/sys/dev/block/{mount.device}"):
        return os.path.realpath(files.inside(root, by_number))
    if not mount.source.startswith("/dev/"):
        return None
    name = Path(mount.source).name
    mapped = (n for n in files.names(root, CLASS) if files.read_line(root, f"{CLASS}/{n}/dm/name") == name)
    folder = f"{CLASS}/{name}"
    folder = folder if files.exists(root, folder) else f"{CLASS}/{next(mapped, name)}"
    return os.path.realpath(files.inside(root, folder)) if files.exists(root, folder) else None


def _device_kind(root: str, device: str, depth: int = 4) -> str:
    """Kind of a block device by its folder; one made of others is as slow as the slowest kind that it is made of."""
    if files.exists(device, "partition"):
        device = str(Path(device).parent)
    parts = files.names(device, "slaves")
    if parts and depth:
        kinds = {_device_kind(root, _part(root, part), depth - 1) for part in parts}
        return next((kind for kind in ("unknown", "rotating", "virtual", "SSD") if kind in kinds), "NVMe")
    return _plain_kind(Path(device))


def _part(root: str, name: str) -> str:
    return os.path.realpath(files.inside(root, f"{CLASS}/{name}"))


def _plain_kind(device: Path) -> str:
    if not device.is_dir():
        return "unknown"
    if device.name.startswith("nvme"):
        return "NVMe"
    model = (files.read_line(device, "device/model") or "").lower()
    if device.name.startswith(("vd", "xvd", "loop")) or any(word in model for word in _VIRTUAL_MODELS):
        return "virtual"
    if device.name.startswith(("zram", "ram")):
        return "memory"
    rotational = files.read_int(device, "queue/rotational")
    return "unknown" if rotational is None else "rotating" if rotational else "SSD"
