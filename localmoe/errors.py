"""The one exception tree. Every error says what happened and what to do, and carries its exit code.

LocalmoeError                 1
├── UsageError                2   the request itself is wrong
├── NotReadyError             3   this machine cannot run what was asked
├── ModelError                4   the model is missing, incomplete or not supported
│   ├── ModelNotFoundError
│   ├── CheckpointError           files that are damaged or do not fit together
│   └── UnsupportedModelError     an architecture or quantisation that localmoe does not run
├── ChatNotFoundError         4   no chat has this id
├── OutOfMemoryError          5   not enough memory, VRAM or disk
├── VerificationError         6   a checksum or a self-test failed
├── HubError                  7   the network or the hub
├── DeviceLostError           1   a device failed and takes no more work
├── RemoteError               1   the engine in another process ended, or is of another version
└── CancelledError          130   interrupted by the user
"""


class LocalmoeError(Exception):
    """What happened, with a hint that can be followed."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LocalmoeError):
    """The request itself is wrong: an option, a value, an empty prompt."""

    exit_code = 2


class NotReadyError(LocalmoeError):
    """This machine cannot run what was asked."""

    exit_code = 3


class ModelError(LocalmoeError):
    """The model is missing, incomplete or not supported."""

    exit_code = 4


class ModelNotFoundError(ModelError):
    """Neither a catalogue name nor a folder with a checkpoint."""


class CheckpointError(ModelError):
    """A checkpoint's files are damaged or do not fit together."""


class UnsupportedModelError(ModelError):
    """An architecture or quantisation that localmoe does not run."""


class ChatNotFoundError(LocalmoeError):
    """No chat has this id, or there is none to continue."""

    exit_code = 4


class OutOfMemoryError(LocalmoeError):
    """Not enough memory, VRAM or disk for what was asked."""

    exit_code = 5

    def __init__(self, message: str, hint: str = "", missing_bytes: int | None = None) -> None:
        super().__init__(message, hint)
        self.missing_bytes = missing_bytes  # at the place that is too small; None: it was not counted


class VerificationError(LocalmoeError):
    """A checksum or a numeric self-test failed."""

    exit_code = 6


class HubError(LocalmoeError):
    """The network or the model hub failed."""

    exit_code = 7


class DeviceLostError(LocalmoeError):
    """A device failed and takes no more work; what runs elsewhere goes on."""


class RemoteError(LocalmoeError):
    """The engine in another process ended, does not answer, or is of another version."""


class CancelledError(LocalmoeError):
    """Interrupted by the user."""

    exit_code = 130
