"""What this system runs inside: a container, WSL, a virtual machine."""

from pathlib import Path

from localmoe.hardware import files

_CONTAINER_FILES = (
    ("docker", ".dockerenv"),
    ("podman", "run/.containerenv"),
    ("kubernetes", "run/secrets/kubernetes.io"),
)
_CONTAINER_GROUPS = (("kubernetes", "kubepods"), ("docker", "docker"), ("podman", "libpod"), ("lxc", "lxc"))
_VENDORS = (("QEMU", "KVM"), ("Amazon EC2", "KVM"), ("Google", "KVM"), ("VMware", "VMware"), ("innotek", "VirtualBox"),
            ("Microsoft", "Hyper-V"), ("Xen", "Xen"))  # fmt: skip


def container(root: str) -> str | None:
    """The container's kind; None when nothing speaks for one."""
    if named := files.read_line(root, "/run/systemd/container"):
        return named
    if found := next((kind for kind, path in _CONTAINER_FILES if (Path(root) / path).exists()), None):
        return found
    groups = (files.read(root, "/proc/self/cgroup") or "") + (files.read(root, "/proc/1/cgroup") or "")
    return next((kind for kind, word in _CONTAINER_GROUPS if f"/{word}" in groups), None)


def hypervisor(root: str) -> str | None:
    """WSL or the virtual machine's kind; None on bare metal."""
    if "microsoft" in (files.read(root, "/proc/sys/kernel/osrelease") or "").lower():
        return "WSL"
    if " hypervisor " not in (files.read(root, "/proc/cpuinfo") or "").replace("\n", " "):
        return None
    vendor = (
        files.read_line(root, "/sys/class/dmi/id/sys_vendor") or files.read_line(root, "/sys/hypervisor/type") or ""
    )
    return next((kind for word, kind in _VENDORS if word.lower() in vendor.lower()), "virtual machine")
