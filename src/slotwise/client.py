"""Calls to a master over HTTP: what the command line is made of, and programs use.

>>> with slotwise.Client() as client:
...     job = client.submit("job.py", ["2013"], executor_memory="2g")
...     client.wait(job, progress=lambda details: print(details["phase"]))

:class:`slotwise.AsyncClient` has the same calls for asyncio."""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import httpx

from slotwise.connection import (
    ATTEMPTS,
    DEFAULT_PORT,
    FINAL_STATES,
    PIECE_BYTES,
    RETRY_S,
    UPLOAD_TIMEOUT,
    Connection,
    Request,
    ServerSentEvents,
    blob_path,
    cancel_call,
    changes_call,
    default_master_url,
    default_token_file,
    is_away,
    job_path,
    jobs_call,
    log_call,
    may_have_broken_off,
    missing_call,
    named_upload,
    one_of,
    problem_of,
    read_token,
    scale_call,
    state_directory,
    submit_call,
)
from slotwise.job_options import describe
from slotwise.model.errors import ClusterError
from slotwise.model.job import JobSpec
from slotwise.tls import ClientTls
from slotwise.uploading import UploadPlan, check_sizes, plan_upload, wants_upload

__all__ = [
    "DEFAULT_PORT",
    "Client",
    "default_master_url",
    "default_token_file",
    "read_token",
    "state_directory",
]

Details = dict[str, Any]


class Client:
    """Synchronous calls to the master at ``url``, each within ``timeout_s`` seconds; usable from several threads.

    Without ``url``: SLOTWISE_MASTER, else the local cluster. Without ``token``: SLOTWISE_TOKEN, else ``token_file``,
    else the local cluster's. ``tls`` says whom to trust (default: as the environment says; see
    :class:`slotwise.tls.ClientTls`).
    Errors are :class:`ClusterError` with what to do.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout_s: float = 30.0,
        *,
        token_file: Path | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._to = Connection(url, token, token_file, tls)
        self.url = self._to.url
        self._http = httpx.Client(**self._to.options(timeout_s))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Any call of the REST API (see its OpenAPI document); the decoded JSON answer. ``arguments`` are httpx's."""
        try:
            answer = self._http.request(method, path, **arguments)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._to.no_answer(error) from error
        return self._to.decoded(answer)

    def _call(self, wish: Request) -> Any:
        return self.call(wish.method, wish.path, params=wish.params or None, headers=wish.headers, content=wish.content)

    # ------------------------------------------------------------------------------------------- jobs

    def submit(
        self,
        program: str | Path | JobSpec,
        args: Sequence[str] = (),
        *,
        upload: str = "auto",
        requirements: str | Path | None = None,
        on_upload: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> str:
        """Submit a job and return its id: a program or pipeline project with its arguments and options (see
        :func:`slotwise.job_options.describe`), or a whole specification. Repeated when the connection breaks, under
        one idempotency key.

        ``upload``: whether its files are uploaded (always), or named by paths that workers can read (never); auto
        uploads them to a master on another machine, and leaves a whole specification as it is. ``requirements``: a
        ``requirements.txt`` or ``uv.lock`` that the job's Python environment is built from. ``on_upload`` is told the
        bytes that were sent and those that there are to send.
        """
        spec = describe(program, args, options)
        files = wants_upload("never" if upload == "auto" and spec is program else upload, self.url)
        plan = plan_upload(spec, requirements, files=files)
        call = submit_call(plan.spec, secrets.token_hex(16))
        for attempt in range(ATTEMPTS):
            self.upload(plan, on_upload)
            try:
                return str(self._call(call)["jid"])
            except ClusterError as error:
                if attempt == ATTEMPTS - 1 or not (may_have_broken_off(error) or self._lacks(plan, error)):
                    raise
                time.sleep(RETRY_S)
        raise AssertionError("unreachable")

    def upload(self, plan: UploadPlan, progress: Callable[[int, int], None] | None = None) -> int:
        """Upload what the master lacks of a plan (:func:`slotwise.uploading.plan_upload`); returns how many files that
        were. A connection that breaks is tried again.
        """
        if not plan.sources:
            return 0
        answer = self._call(missing_call(plan.sources))
        total, before = check_sizes(plan, answer["missing"], answer["max-file-size"]), 0
        for name in answer["missing"]:
            before = self._put(name, plan.sources[name], before, lambda done: progress and progress(done, total))
        return len(answer["missing"])

    def _put(self, name: str, source: Path | bytes, before: int, sent: Callable[[int], object]) -> int:
        for attempt in range(ATTEMPTS):
            with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
                size = file.seek(0, io.SEEK_END)
                file.seek(0)

                def pieces(file: BinaryIO = file, done: int = before) -> Iterator[bytes]:
                    while piece := file.read(PIECE_BYTES):
                        yield piece
                        done += len(piece)
                        sent(done)

                headers = {"Content-Length": str(size)}
                try:
                    self.call("PUT", blob_path(name), content=pieces(), headers=headers, timeout=UPLOAD_TIMEOUT)
                except ClusterError as error:
                    if attempt == ATTEMPTS - 1 or not is_away(error):
                        raise named_upload(source, error) from error
                    time.sleep(RETRY_S)
                else:
                    return before + size
        raise AssertionError("unreachable")

    def _lacks(self, plan: UploadPlan, error: ClusterError) -> bool:
        """Whether a submission was refused because of files that have gone since they were asked for."""
        refused = error.status == HTTPStatus.CONFLICT and bool(plan.sources)
        return refused and bool(self._call(missing_call(plan.sources))["missing"])

    def find_job(self, given: str) -> str:
        """The id of the job that ``given`` is, or is the beginning of (with or without `job-`). Raises
        :class:`ClusterError` when there is none, or more than one.
        """
        try:
            return str(self.call("GET", job_path(given))["jid"])
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        names = {job["jid"]: job["name"] for job in self.call("GET", "/v1/jobs/overview")["jobs"]}
        return one_of("job", given, names)

    def find_worker(self, given: str) -> str:
        """The id of the registered worker that ``given`` is, or is the beginning of (with or without `worker-`). Raises
        :class:`ClusterError` when there is none, or more than one.
        """
        workers = self.call("GET", "/v1/taskmanagers")["taskmanagers"]
        return one_of("worker", given, {worker["id"]: worker["host"] for worker in workers})

    def jobs(
        self,
        state: Iterable[str] | str = (),
        name: str | None = None,
        offset: int = 0,
        limit: int | None = None,
        order: str | None = None,
    ) -> list[Details]:
        """The jobs in one of the states ``state`` whose name has ``name`` in it, ``limit`` at most from ``offset`` on;
        ``order`` is start, end, duration, name or state, with a minus sign for the greatest first.
        """
        return list(self._call(jobs_call(state, name, offset, limit, order))["jobs"])

    def job(self, job: str) -> Details:
        """The details of a job."""
        return dict(self.call("GET", job_path(job)))

    def cancel(self, job: str) -> str:
        """Have a job end; the state that it was in. Once more does no harm."""
        return str(self._call(cancel_call(job))["state"])

    def bounds(self, job: str) -> tuple[int, int | None]:
        """The least and the greatest number of executors that the job may have (None: no bound)."""
        details = self.job(job)
        return details["min-executors"], details["max-executors"]

    def scale(self, job: str, least: int, most: int | None) -> None:
        """Change the number of executors that the job may have, now and for good (``most`` None: no bound)."""
        self._call(scale_call(job, least, most))

    def explain(self, job: str) -> Details:
        """Why the job has the slots that it has, and what would help."""
        return dict(self.call("GET", job_path(job, "explain")))

    def events(self, job: str, after: int = 0) -> list[Details]:
        """What happened to a job, oldest first: events with a number above ``after``."""
        return list(self.call("GET", job_path(job, "events"), params={"after": str(after)})["events"])

    # ------------------------------------------------------------------------------------------- waiting

    def watch(self, job: str, poll_s: float = 0.3, patience_s: float = 120.0) -> Iterator[Details]:
        """The details of a job, again and again, the last time in its final state. A master that is away for less than
        ``patience_s`` seconds (a restart) is waited for.
        """
        answered = time.monotonic()
        while True:
            try:
                details = self.job(job)
            except ClusterError as error:
                if not is_away(error) or time.monotonic() - answered > patience_s:
                    raise
                time.sleep(poll_s)
                continue
            answered = time.monotonic()
            yield details
            if details["state"] in FINAL_STATES:
                return
            time.sleep(poll_s)

    def wait(
        self,
        job: str,
        progress: Callable[[Details], None] | None = None,
        *,
        timeout_s: float | None = None,
        poll_s: float = 0.3,
    ) -> Details:
        """Wait for a job's end and return its details, in whichever final state. ``progress`` is called with the
        details as they come. Raises :class:`ClusterError` when it has not ended within ``timeout_s`` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for details in self.watch(job, poll_s):
            if progress is not None:
                progress(details)
            if details["state"] in FINAL_STATES:
                return details
            if deadline is not None and time.monotonic() >= deadline:
                raise ClusterError(f"job {job} has not ended within {timeout_s:g} s; it goes on")
        raise AssertionError("unreachable")

    def changes(self, job: str | None = None, patience_s: float = 120.0) -> Iterator[tuple[str, ...]]:
        """What to fetch again, as it changes (``jobs``, ``workers``, ``resources``, ``job:<id>``), of one job or of
        all, without end. A stream that breaks off is resumed where it was; a master that is away is waited for, up to
        ``patience_s`` seconds.
        """
        reader = ServerSentEvents()
        answered = time.monotonic()
        while True:
            wish = changes_call(job, reader.last_id)
            try:
                with self._http.stream(
                    wish.method, wish.path, params=wish.params, headers=wish.headers, timeout=None
                ) as answer:
                    if answer.is_error:
                        answer.read()
                        raise ClusterError(problem_of(answer))
                    for line in answer.iter_lines():
                        answered = time.monotonic()
                        yield from reader.feed(line)
            except httpx.HTTPError as error:
                if time.monotonic() - answered > patience_s:
                    raise self._to.no_answer(error) from error
            reader.broke_off()
            time.sleep(RETRY_S)

    # ------------------------------------------------------------------------------------------- logs

    def logs(self, job: str) -> list[str]:
        """The names of a job's logs."""
        return list(self.call("GET", job_path(job, "logs"))["logs"])

    def log(self, job: str, name: str, *, follow: bool = False, offset: int = 0) -> Iterator[bytes]:
        """The bytes of a log from ``offset``; with ``follow`` until the job is over."""
        wish = log_call(job, name, follow=follow, offset=offset)
        try:
            with self._http.stream(wish.method, wish.path, params=wish.params, timeout=None) as answer:
                if answer.is_error:
                    answer.read()
                    raise ClusterError(problem_of(answer))
                yield from answer.iter_raw()
        except httpx.HTTPError as error:
            raise ClusterError(f"the master at {self.url} went away: {error}") from error

    def archive(self, job: str) -> Iterator[bytes]:
        """All logs of a job, as the bytes of a zip."""
        try:
            with self._http.stream("GET", job_path(job, "logs.zip"), timeout=None) as answer:
                if answer.is_error:
                    answer.read()
                    raise ClusterError(problem_of(answer))
                yield from answer.iter_raw()
        except httpx.HTTPError as error:
            raise ClusterError(f"the master at {self.url} went away: {error}") from error
