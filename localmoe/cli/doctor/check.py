"""One finding about a machine, and what to change."""

from dataclasses import dataclass
from typing import Any, Literal

from localmoe.hardware import Machine

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Fix:
    """Words, then shell lines that can be copied as they are. Empty: there is nothing to change."""

    text: str = ""
    commands: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.commands)

    def __str__(self) -> str:
        return "\n".join((self.text, *self.commands) if self.text else self.commands)


NO_FIX = Fix()


@dataclass(frozen=True, slots=True)
class Check:
    """`ok`: as good as this machine gets; `warn`: it runs, but slower or less; `fail`: localmoe cannot run."""

    id: str
    label: str
    status: Status
    detail: str
    fix: Fix = NO_FIX

    def to_json(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {"id": self.id, "status": self.status, "detail": self.detail, "fix": str(self.fix)}


def container_option(machine: Machine, option: str, elsewhere: str) -> str:
    """How to start this container differently; `elsewhere` where it is none that takes docker's options."""
    if machine.container in ("docker", "podman"):
        return f"start the container with {machine.container} run {option}"
    return elsewhere


def kernel_setting(machine: Machine, *commands: str, text: str = "") -> Fix:
    """A setting of the kernel: a container's is its host's."""
    if machine.container:
        return Fix(f"on the host, outside of this container{f'; {text}' if text else ''}", commands)
    return Fix(text, commands)


def sysctl(machine: Machine, name: str, value: int) -> Fix:
    """Sets it now and at every boot."""
    file = "/etc/sysctl.d/90-localmoe.conf"
    return kernel_setting(machine, f"echo {name}={value} | sudo tee -a {file}", "sudo sysctl --system")


def many(count: int, noun: str) -> str:
    """2 nodes."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
