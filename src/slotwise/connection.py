"""What the synchronous and the asynchronous client share: where the master is, and each call as a value."""

from __future__ import annotations

import difflib
import json
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import msgspec
import platformdirs

from slotwise.model.errors import ClusterError
from slotwise.model.job import JobSpec
from slotwise.tls import ClientTls

DEFAULT_PORT = 8090
FINAL_STATES = ("FINISHED", "FAILED", "CANCELED")
UNBOUNDED = 2**31 - 1
ATTEMPTS = 3
RETRY_S = 0.2
_LIMITS = httpx.Limits(max_connections=None)


def state_directory() -> Path:
    """Where this user's clusters keep their address, token, records and logs."""
    override = os.environ.get("SLOTWISE_STATE_DIR")
    return Path(override).absolute() if override else Path(platformdirs.user_state_dir("slotwise"))


def default_token_file() -> Path:
    """The token that a master on this machine writes and everybody of this user finds."""
    return state_directory() / "token"


def default_master_url() -> str:
    """SLOTWISE_MASTER, else the running local cluster's address, else the default port on this machine."""
    if url := os.environ.get("SLOTWISE_MASTER"):
        return url
    try:
        return str(json.loads((state_directory() / "cluster.json").read_text())["url"])
    except (OSError, ValueError, KeyError):
        return f"http://127.0.0.1:{DEFAULT_PORT}"


def master_address(url: str | None) -> str:
    """``url``, or the default one. Raises :class:`ClusterError` where no master can be at such an address."""
    address = (url or default_master_url()).rstrip("/")
    try:
        httpx.URL(address)
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it has no http:// or https://, or no host")
        # The sockets of some systems take a port past the last for another one.
        if parts.port == 0:
            raise ValueError("port 0 cannot be called")
    except (ValueError, httpx.InvalidURL) as error:
        raise ClusterError(f"--master {address}: {error}; write http://HOST:PORT") from error
    return address


def read_token(file: Path | None) -> str:
    """SLOTWISE_TOKEN, else the text of ``file`` (or the default file). Raises :class:`ClusterError`."""
    if file is None and (token := os.environ.get("SLOTWISE_TOKEN")):
        return token
    path = file or default_token_file()
    try:
        return path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise ClusterError(f"{path} is not a token file: it holds more than plain text") from error
    except OSError as error:
        raise ClusterError(
            f"no token: cannot read {path} ({error.strerror}); start a master here, "
            "or copy its token file and name it with --token-file"
        ) from error


class Request(msgspec.Struct, frozen=True):
    """A call that can be made by either client."""

    method: str
    path: str
    params: dict[str, str] = {}
    headers: dict[str, str] = {}
    content: bytes | None = None


class Connection:
    """Where the master is, whom it is called as, and what its answers mean."""

    def __init__(self, url: str | None, token: str | None, token_file: Path | None, tls: ClientTls | None) -> None:
        self.url = master_address(url)
        self._token = token or read_token(token_file)
        self._tls = tls or ClientTls.of()

    def options(self, timeout_s: float) -> dict[str, Any]:
        """For httpx's clients."""
        if not self._token.isascii() or not self._token.isprintable():
            raise ClusterError("this is no token: it holds more than plain text")
        context: ssl.SSLContext | None = self._tls.context(self.url)
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {self._token}"},
            "timeout": timeout_s,
            "trust_env": False,
            "limits": _LIMITS,
            **({"verify": context} if context is not None else {}),
        }

    def no_answer(self, error: Exception) -> ClusterError:
        """Nobody answers, or not in full."""
        why, cause = str(error) or type(error).__name__, error.__cause__
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, ssl.SSLError):
            return ClusterError(
                f"no trust between the master at {self.url} and this client ({why}); name its authority with --ca-cert "
                "(SLOTWISE_CA_CERT), and show a certificate with --client-cert if it asks for one"
            )
        hint = "; if it speaks TLS, write https://" if isinstance(error, httpx.RemoteProtocolError) else ""
        return ClusterError(
            f"no master answers at {self.url} ({why}{hint}); start one with `slotwise cluster start`, "
            "or name it with --master"
        )

    def decoded(self, answer: httpx.Response) -> Any:
        """The JSON of an answer. Raises :class:`ClusterError` with the master's words when it says no."""
        if answer.is_error:
            raise ClusterError(problem_of(answer), answer.status_code)
        try:
            return answer.json()
        except ValueError as error:
            raise ClusterError(f"{self.url} does not answer as a Slotwise master does") from error


def problem_of(answer: httpx.Response) -> str:
    """What the master says is wrong."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the master answered {answer.status_code} {answer.reason_phrase}"


_MOST_NAMED = 5


def may_have_broken_off(error: ClusterError) -> bool:
    """Whether the call may have been carried out although no answer came."""
    return isinstance(error.__cause__, httpx.ReadError | httpx.RemoteProtocolError | httpx.ReadTimeout)


def is_away(error: ClusterError) -> bool:
    """Whether there was no answer at all, as while a master starts again."""
    return isinstance(error.__cause__, httpx.HTTPError)


# ----------------------------------------------------------------------------------------------- the calls


def job_path(job: str, *rest: str) -> str:
    """The path of a job or a part of it, whatever its name looks like."""
    return "/".join(["/v1/jobs", quote(job, safe=""), *(quote(part, safe="") for part in rest)])


def submit_call(spec: JobSpec, key: str) -> Request:
    """POST /v1/jobs."""
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return Request("POST", "/v1/jobs", headers=headers, content=msgspec.json.encode(spec))


def missing_call(names: Iterable[str]) -> Request:
    """POST /v1/blobs/missing."""
    headers = {"Content-Type": "application/json"}
    return Request("POST", "/v1/blobs/missing", headers=headers, content=msgspec.json.encode({"hashes": list(names)}))


def blob_path(name: str) -> str:
    """The path of an uploaded file."""
    return f"/v1/blobs/{name}"


def named_upload(source: Path | bytes, error: ClusterError) -> ClusterError:
    """The same error with the file that it is about."""
    what = "the list of the job's files" if isinstance(source, bytes) else source
    named = ClusterError(f"{what} was not uploaded: {error}", error.status)
    named.__cause__ = error.__cause__
    return named


UPLOAD_TIMEOUT = httpx.Timeout(60.0, read=600.0)
"""The answer to an upload comes when all of it is on the master's disk."""

PIECE_BYTES = 1024 * 1024


def jobs_call(
    state: Iterable[str] | str, name: str | None, offset: int, limit: int | None, order: str | None
) -> Request:
    """GET /v1/jobs/overview."""
    states = state if isinstance(state, str) else ",".join(state)
    given: Mapping[str, object] = {
        "state": states or None,
        "name": name,
        "offset": offset or None,
        "limit": limit,
        "order": order,
    }
    return Request("GET", "/v1/jobs/overview", {key: str(value) for key, value in given.items() if value is not None})


def cancel_call(job: str) -> Request:
    """PATCH /v1/jobs/:jobid."""
    return Request("PATCH", job_path(job), {"mode": "cancel"})


def scale_call(job: str, least: int, most: int | None) -> Request:
    """PUT /v1/jobs/:jobid/resource-requirements."""
    bounds = {"lowerBound": least, "upperBound": UNBOUNDED if most is None else most}
    body = {"jobVertexResourceRequirements": {"application": {"parallelism": bounds}}}
    headers = {"Content-Type": "application/json"}
    return Request("PUT", job_path(job, "resource-requirements"), headers=headers, content=msgspec.json.encode(body))


def log_call(job: str, name: str, *, follow: bool, offset: int) -> Request:
    """GET /v1/jobs/:jobid/logs/:name."""
    return Request("GET", job_path(job, "logs", name), {"offset": str(offset), **({"follow": "1"} if follow else {})})


def changes_call(job: str | None, last: str | None) -> Request:
    """GET /v1/events."""
    return Request(
        "GET", "/v1/events", {} if job is None else {"job": job}, {} if not last else {"Last-Event-ID": last}
    )


class ServerSentEvents:
    """Reads a stream of server-sent events. ``last_id`` is where to resume."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self._data: list[str] = []

    def feed(self, line: str) -> Iterator[tuple[str, ...]]:
        """Take one line without its end; the topics of a message that it completes."""
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id":
            self.last_id = value
        elif field == "data":
            self._data.append(value)
        elif not line:
            data, self._data = "\n".join(self._data), []
            if data:
                yield tuple(json.loads(data)["topics"])

    def broke_off(self) -> None:
        """Half a message is none."""
        self._data = []


def one_of(kind: str, given: str, known: dict[str, str]) -> str:
    """The one of ``known`` (ids, with what people call them) that ``given`` means."""
    if given in known:
        return given
    found = [id_ for id_ in known if given and id_.startswith((given, f"{kind}-{given}"))]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(found[:_MOST_NAMED]) + (" …" if len(found) > _MOST_NAMED else "")
        raise ClusterError(f"{len(found)} {kind}s begin with {given!r}: {some}; give more of the id")
    named = [id_ for id_, name in known.items() if name == given]
    near = named[-1:] or difflib.get_close_matches(given, known, n=1)
    hint = f"; did you mean {near[0]} ({known[near[0]]})?" if near else f"; `slotwise {kind}s` lists them"
    raise ClusterError(f"there is no {kind} {given}{hint}")
