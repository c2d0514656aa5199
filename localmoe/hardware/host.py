"""What this system runs inside: a container, WSL, a virtual machine."""

from collections.abc import Sequence

from localmoe.hardware import files
from localmoe.hardware.cores import Processor
from localmoe.hardware.mounts import mounts

_CONTAINER_FILES = (
    ("docker", "/.dockerenv"),
    ("podman", "/run/.containerenv"),
    ("kubernetes", "/run/secrets/kubernetes.io"),
)
_CONTAINER_GROUPS = (("kubernetes", "kubepods"), ("docker", "docker"), ("podman", "libpod"), ("lxc", "lxc"))
_CONTAINER_MOUNTS = (("kubernetes", "kubelet/pods"), ("docker", "docker/containers"), ("podman", "overlay-containers"))
_VERSIONS = ("/proc/sys/kernel/osrelease", "/proc/version")
_VENDORS = (("QEMU", "KVM"), ("Amazon EC2", "KVM"), ("Google", "KVM"), ("VMware", "VMware"), ("innotek", "VirtualBox"),
            ("Microsoft", "Hyper-V"), ("Xen", "Xen"))  # fmt: skip


def container(root: str) -> str | None:
    """The container's kind; None when nothing speaks for one."""
    if named := files.read_line(root, "/run/systemd/container"):
        return named
    if found := next((kind for kind, path in _CONTAINER_FILES if files.exists(root, path)), None):
        return found
    groups = (files.read(root, "/proc/self/cgroup") or "") + (files.read(root, "/proc/1/cgroup") or "")
    if found := next((kind for kind, word in _CONTAINER_GROUPS if f"/{word}" in groups), None):
        return found
    binds = [mount.root for mount in mounts(root)]  # the host's files that a runtime puts over resolv.conf and others
    return next((kind for kind, word in _CONTAINER_MOUNTS if any(f"/{word}/" in bind for bind in binds)), None)


def hypervisor(root: str, found: Sequence[Processor]) -> str | None:
    """WSL or the virtual machine's kind; None on bare metal. `found` is what /proc/cpuinfo says."""
    if any("microsoft" in (files.read(root, path) or "").lower() for path in _VERSIONS):
        return "WSL"
    if not any("hypervisor" in processor.get("flags", "").split() for processor in found[:1]):
        return None
    vendor = (
        files.read_line(root, "/sys/class/dmi/id/sys_vendor") or files.read_line(root, "/sys/hypervisor/type") or ""
    )
    return next((kind for word, kind in _VENDORS if word.lower() in vendor.lower()), "virtual machine")
