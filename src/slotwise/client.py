"""Calls to a master over HTTP, as the command line makes them."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import secrets
import time
import urllib.parse
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import msgspec
import platformdirs

from slotwise.model.errors import ClusterError
from slotwise.model.job import JobSpec

DEFAULT_PORT = 8090
_MOST_NAMED = 5
_EVENT_STREAM = "text/event-stream"
# The stream has a comment line every 15 s.
_SILENCE_S = 40.0
_RECONNECT_S = 1.0
_FINAL = ("FINISHED", "FAILED", "CANCELED")


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


class Client:
    """Synchronous calls to the master at ``url``, each within ``timeout_s`` seconds. Errors are :class:`ClusterError`
    with what to do.
    """

    def __init__(self, url: str, token: str, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        try:
            self._http = httpx.Client(
                base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=timeout_s, trust_env=False
            )
        except httpx.InvalidURL as error:
            raise ClusterError(f"--master {url}: {error}; write http://HOST:PORT") from error

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """One call; the decoded JSON answer."""
        try:
            answer = self._http.request(method, path, **arguments)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ClusterError(
                f"no master answers at {self.url} ({error}); start one with `slotwise cluster start`, "
                "or name it with --master"
            ) from error
        if answer.is_error:
            raise ClusterError(_problem(answer), answer.status_code)
        try:
            return answer.json()
        except ValueError as error:
            raise ClusterError(f"{self.url} does not answer as a Slotwise master does") from error

    def submit(self, spec: JobSpec) -> str:
        """Submit a job and return its id. Repeated when the connection breaks, under one idempotency key."""
        key = secrets.token_hex(16)
        body = msgspec.json.encode(spec)
        for attempt in range(3):
            try:
                answer = self.call("POST", "/v1/jobs", content=body, headers={"Idempotency-Key": key})
                return str(answer["jid"])
            except ClusterError as error:
                if attempt == 2 or not isinstance(error.__cause__, httpx.ReadError | httpx.RemoteProtocolError):
                    raise
                time.sleep(0.2)
        raise AssertionError("unreachable")

    def find_job(self, given: str) -> str:
        """The id of the job that ``given`` is, or is the beginning of (with or without `job-`). Raises
        :class:`ClusterError` when there is none, or more than one.
        """
        try:
            return str(self.call("GET", f"/v1/jobs/{_quoted(given)}")["jid"])
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        names = {job["jid"]: job["name"] for job in self.call("GET", "/v1/jobs/overview")["jobs"]}
        return _one_of("job", given, names)

    def find_worker(self, given: str) -> str:
        """The id of the registered worker that ``given`` is, or is the beginning of (with or without `worker-`). Raises
        :class:`ClusterError` when there is none, or more than one.
        """
        workers = self.call("GET", "/v1/taskmanagers")["taskmanagers"]
        return _one_of("worker", given, {worker["id"]: worker["host"] for worker in workers})

    def job(self, job: str) -> dict[str, Any]:
        """The details of a job."""
        return dict(self.call("GET", f"/v1/jobs/{job}"))

    def bounds(self, job: str) -> tuple[int, int | None]:
        """The least and the greatest number of executors that the job may have (None: no bound)."""
        details = self.job(job)
        return details["min-executors"], details["max-executors"]

    def scale(self, job: str, least: int, most: int | None) -> None:
        """Change the number of executors that the job may have, now and for good."""
        bounds = {"lowerBound": least, "upperBound": 2**31 - 1 if most is None else most}
        body = {"jobVertexResourceRequirements": {"application": {"parallelism": bounds}}}
        self.call("PUT", f"/v1/jobs/{job}/resource-requirements", json=body)

    def wait(self, job: str, poll_s: float = 0.3, patience_s: float = 120.0) -> Iterator[dict[str, Any]]:
        """The details of a job, again and again, the last time in its final state. A master that is away for less than
        ``patience_s`` seconds (a restart) is waited for.
        """
        answered = time.monotonic()
        while True:
            try:
                details = self.job(job)
            except ClusterError as error:
                away = isinstance(error.__cause__, httpx.HTTPError)
                if not away or time.monotonic() - answered > patience_s:
                    raise
                time.sleep(poll_s)
                continue
            answered = time.monotonic()
            yield details
            if details["state"] in _FINAL:
                return
            time.sleep(poll_s)

    def log(self, job: str, name: str, *, follow: bool, offset: int = 0) -> Iterator[bytes]:
        """The bytes of a log; with ``follow`` until the job is over."""
        query = {"offset": str(offset), **({"follow": "1"} if follow else {})}
        try:
            with self._http.stream("GET", f"/v1/jobs/{job}/logs/{name}", params=query, timeout=None) as answer:
                if answer.is_error:
                    answer.read()
                    raise ClusterError(_problem(answer))
                yield from answer.iter_raw()
        except httpx.HTTPError as error:
            raise ClusterError(f"the master at {self.url} went away: {error}") from error

    def changes(self) -> Iterator[list[str]]:
        """The topics that have changed, whenever some have, as the master's stream of events says; again and again
        while the master is away. Ends at once where the master has no such stream.
        """
        timeout = httpx.Timeout(10.0, read=_SILENCE_S)
        while True:
            with (
                contextlib.suppress(httpx.HTTPError, ValueError, KeyError),
                self._http.stream("GET", "/v1/events", timeout=timeout) as answer,
            ):
                if answer.is_error or not answer.headers.get("content-type", "").startswith(_EVENT_STREAM):
                    return
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        yield list(json.loads(line.removeprefix("data:"))["topics"])
            time.sleep(_RECONNECT_S)

    def archive(self, job: str) -> Iterator[bytes]:
        """All logs of a job, as the bytes of a zip."""
        try:
            with self._http.stream("GET", f"/v1/jobs/{job}/logs.zip", timeout=None) as answer:
                if answer.is_error:
                    answer.read()
                    raise ClusterError(_problem(answer))
                yield from answer.iter_raw()
        except httpx.HTTPError as error:
            raise ClusterError(f"the master at {self.url} went away: {error}") from error


def _quoted(part: str) -> str:
    """A part of a path, which no id of somebody's making leaves."""
    return urllib.parse.quote(part, safe="")


def _one_of(kind: str, given: str, known: dict[str, str]) -> str:
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


def _problem(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError):
        return f"the master answered {answer.status_code} {answer.reason_phrase}"
