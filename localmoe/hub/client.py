"""The hub's client: which hub it asks, how quiet it is, and what its refusals mean to people."""

import os
from collections.abc import Mapping

from localmoe.errors import HubError, LocalmoeError
from localmoe.hub.json_file import shown

__all__ = ["endpoint", "headers", "quieten", "refused", "retry_after_s"]


def endpoint() -> str:
    """The hub; the client's own value is as old as its import."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def headers() -> dict[str, str]:
    """What every request carries: who asks, and the token that HF_TOKEN or `hf auth login` left."""
    from huggingface_hub.utils import build_hf_headers

    from localmoe import __version__

    return dict(build_hf_headers(library_name="localmoe", library_version=__version__))


def quieten() -> None:
    """No bars and no warnings: what went wrong is in the error."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, logging

    logging.set_verbosity_error()
    if not are_progress_bars_disabled():
        disable_progress_bars()


def retry_after_s(answer: Mapping[str, str]) -> float | None:
    """How long an answer of 429 or 503 asks to wait, by its headers; None: it does not say so in seconds."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(answer)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    text = answer.get("Retry-After", "").strip()
    return float(text) if text.isdecimal() and len(text) < 10 else None


def refused(repository: str, revision: str, error: Exception) -> LocalmoeError:
    """What to say of an error of the client's about `repository`, or of one file of it."""
    from huggingface_hub import errors

    name, where = shown(repository), endpoint()
    match error:
        case errors.GatedRepoError() if error.response.status_code == 403:
            hint = f"see {where}/{name} for the state of your request; hf auth whoami tells who is logged in"
            return HubError(f"{name} is only for those whom its makers let in, and this login is not among them.", hint)
        case errors.GatedRepoError():
            hint = f"accept them at {where}/{name}, then log in: hf auth login"
            return HubError(f"{name} is only for those who accepted its terms.", hint)
        case errors.DisabledRepoError():
            return HubError(f"the hub has disabled {name}.", f"see {where}/{name} for why; choose another model")
        case errors.RepositoryNotFoundError():
            return HubError(f"{where} has no {name}.", "check the name; a private one needs a login: hf auth login")
        case errors.RevisionNotFoundError():
            return HubError(
                f"{name} has no revision {shown(revision)}.", f"see {where}/{name}/tree/main for what it has"
            )
        case errors.HfHubHTTPError():
            return _answered(name, where, error.response.status_code, retry_after_s(error.response.headers))
        case errors.OfflineModeIsEnabled():
            return HubError(
                "the hub may not be asked: HF_HUB_OFFLINE is set.", "unset HF_HUB_OFFLINE, or give a folder"
            )
    why = shown(" ".join(f"{error}".split()) or type(error).__name__).removesuffix(".")
    hint = "check the network, the proxy and HF_ENDPOINT; a folder with config.json needs no hub"
    return HubError(f"{where} {_met(error)}: {why}.", hint)


def _met(error: Exception) -> str:
    """What a network error is to people; by the names of its classes, because the client's library may be another."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"ConnectError", "ConnectTimeout", "ProxyError"}:
        return "cannot be reached"
    if "TimeoutException" in names:
        return "sent nothing for too long"
    if names & {"RemoteProtocolError", "ReadError", "WriteError", "CloseError"}:
        return "broke off its answer"
    return "does not answer as a hub does"


def _answered(name: str, where: str, status: int, wait_s: float | None) -> HubError:
    if status == 404:
        return HubError(f"{where} has no such file of {name} (404).", "the repository may have changed: try again")
    if status == 429 and wait_s:
        hint = f"try again in {_minutes(wait_s)}; with a login (hf auth login) it allows more"
        return HubError(f"{where} answers 429 for {name}: too much was asked of it.", hint)
    return HubError(f"{where} answers {status} for {name}.", _advice(status))


def _advice(status: int) -> str:
    if status in (401, 403):
        return "log in again: hf auth login"
    if status == 429:
        return "wait a few minutes: the hub limits how often it is asked; with a login it allows more"
    return "try again later; HF_ENDPOINT names another hub"


def _minutes(wait_s: float) -> str:
    return f"{wait_s:.0f} s" if wait_s < 120 else f"{wait_s / 60:.0f} min"
