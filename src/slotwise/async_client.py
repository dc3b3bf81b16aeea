"""The calls of :class:`slotwise.Client` for asyncio.

>>> async with slotwise.AsyncClient() as client:
...     job = await client.submit("job.py", ["2013"], executor_memory="2g")
...     await client.wait(job)
"""

from __future__ import annotations

import asyncio
import io
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import httpx

from slotwise.client import Details
from slotwise.connection import (
    ATTEMPTS,
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
    is_away,
    job_path,
    jobs_call,
    log_call,
    may_have_broken_off,
    missing_call,
    named_upload,
    one_of,
    problem_of,
    scale_call,
    submit_call,
)
from slotwise.job_options import describe
from slotwise.model.errors import ClusterError
from slotwise.model.job import JobSpec
from slotwise.tls import ClientTls
from slotwise.uploading import UploadPlan, check_sizes, plan_upload, wants_upload


class AsyncClient:
    """See :class:`slotwise.Client`, whose arguments these are."""

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
        self._http = httpx.AsyncClient(**self._to.options(timeout_s))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()

    async def call(self, method: str, path: str, **arguments: Any) -> Any:
        """See :meth:`slotwise.Client.call`."""
        try:
            answer = await self._http.request(method, path, **arguments)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._to.no_answer(error) from error
        return self._to.decoded(answer)

    async def _call(self, wish: Request) -> Any:
        return await self.call(
            wish.method, wish.path, params=wish.params or None, headers=wish.headers, content=wish.content
        )

    # ------------------------------------------------------------------------------------------- jobs

    async def submit(
        self,
        program: str | Path | JobSpec,
        args: Sequence[str] = (),
        *,
        upload: str = "auto",
        requirements: str | Path | None = None,
        on_upload: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> str:
        """See :meth:`slotwise.Client.submit`. Files are read in threads."""
        spec = describe(program, args, options)
        mode = "never" if upload == "auto" and spec is program else upload
        files = await asyncio.to_thread(wants_upload, mode, self.url)
        plan = await asyncio.to_thread(plan_upload, spec, requirements, files=files)
        call = submit_call(plan.spec, secrets.token_hex(16))
        for attempt in range(ATTEMPTS):
            await self.upload(plan, on_upload)
            try:
                return str((await self._call(call))["jid"])
            except ClusterError as error:
                if attempt == ATTEMPTS - 1 or not (may_have_broken_off(error) or await self._lacks(plan, error)):
                    raise
                await asyncio.sleep(RETRY_S)
        raise AssertionError("unreachable")

    async def upload(self, plan: UploadPlan, progress: Callable[[int, int], None] | None = None) -> int:
        """See :meth:`slotwise.Client.upload`."""
        if not plan.sources:
            return 0
        answer = await self._call(missing_call(plan.sources))
        total, before = check_sizes(plan, answer["missing"], answer["max-file-size"]), 0
        for name in answer["missing"]:
            source = plan.sources[name]
            before = await self._put(name, source, before, lambda done: progress and progress(done, total))
        return len(answer["missing"])

    async def _put(self, name: str, source: Path | bytes, before: int, sent: Callable[[int], object]) -> int:
        for attempt in range(ATTEMPTS):
            with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
                size = file.seek(0, io.SEEK_END)
                file.seek(0)

                async def pieces(file: BinaryIO = file, done: int = before) -> AsyncIterator[bytes]:
                    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                        yield piece
                        done += len(piece)
                        sent(done)

                headers = {"Content-Length": str(size)}
                try:
                    await self.call("PUT", blob_path(name), content=pieces(), headers=headers, timeout=UPLOAD_TIMEOUT)
                except ClusterError as error:
                    if attempt == ATTEMPTS - 1 or not is_away(error):
                        raise named_upload(source, error) from error
                    await asyncio.sleep(RETRY_S)
                else:
                    return before + size
        raise AssertionError("unreachable")

    async def _lacks(self, plan: UploadPlan, error: ClusterError) -> bool:
        refused = error.status == HTTPStatus.CONFLICT and bool(plan.sources)
        return refused and bool((await self._call(missing_call(plan.sources)))["missing"])

    async def jobs(
        self,
        state: Iterable[str] | str = (),
        name: str | None = None,
        offset: int = 0,
        limit: int | None = None,
        order: str | None = None,
    ) -> list[Details]:
        """See :meth:`slotwise.Client.jobs`."""
        return list((await self._call(jobs_call(state, name, offset, limit, order)))["jobs"])

    async def job(self, job: str) -> Details:
        """The details of a job."""
        return dict(await self.call("GET", job_path(job)))

    async def cancel(self, job: str) -> str:
        """See :meth:`slotwise.Client.cancel`."""
        return str((await self._call(cancel_call(job)))["state"])

    async def bounds(self, job: str) -> tuple[int, int | None]:
        """See :meth:`slotwise.Client.bounds`."""
        details = await self.job(job)
        return details["min-executors"], details["max-executors"]

    async def scale(self, job: str, least: int, most: int | None) -> None:
        """See :meth:`slotwise.Client.scale`."""
        await self._call(scale_call(job, least, most))

    async def explain(self, job: str) -> Details:
        """Why the job has the slots that it has, and what would help."""
        return dict(await self.call("GET", job_path(job, "explain")))

    async def events(self, job: str, after: int = 0) -> list[Details]:
        """See :meth:`slotwise.Client.events`."""
        return list((await self.call("GET", job_path(job, "events"), params={"after": str(after)}))["events"])

    # ------------------------------------------------------------------------------------------- waiting

    async def watch(self, job: str, poll_s: float = 0.3, patience_s: float = 120.0) -> AsyncIterator[Details]:
        """See :meth:`slotwise.Client.watch`."""
        answered = time.monotonic()
        while True:
            try:
                details = await self.job(job)
            except ClusterError as error:
                if not is_away(error) or time.monotonic() - answered > patience_s:
                    raise
                await asyncio.sleep(poll_s)
                continue
            answered = time.monotonic()
            yield details
            if details["state"] in FINAL_STATES:
                return
            await asyncio.sleep(poll_s)

    async def wait(
        self,
        job: str,
        progress: Callable[[Details], Awaitable[None] | None] | None = None,
        *,
        timeout_s: float | None = None,
        poll_s: float = 0.3,
    ) -> Details:
        """See :meth:`slotwise.Client.wait`; ``progress`` may be a coroutine function."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        async for details in self.watch(job, poll_s):
            if progress is not None and (waits := progress(details)) is not None:
                await waits
            if details["state"] in FINAL_STATES:
                return details
            if deadline is not None and time.monotonic() >= deadline:
                raise ClusterError(f"job {job} has not ended within {timeout_s:g} s; it goes on")
        raise AssertionError("unreachable")

    async def changes(self, job: str | None = None, patience_s: float = 120.0) -> AsyncIterator[tuple[str, ...]]:
        """See :meth:`slotwise.Client.changes`."""
        reader = ServerSentEvents()
        answered = time.monotonic()
        while True:
            wish = changes_call(job, reader.last_id)
            try:
                async with self._http.stream(
                    wish.method, wish.path, params=wish.params, headers=wish.headers, timeout=None
                ) as answer:
                    if answer.is_error:
                        await answer.aread()
                        raise ClusterError(problem_of(answer))
                    async for line in answer.aiter_lines():
                        answered = time.monotonic()
                        for topics in reader.feed(line):
                            yield topics
            except httpx.HTTPError as error:
                if time.monotonic() - answered > patience_s:
                    raise self._to.no_answer(error) from error
            reader.broke_off()
            await asyncio.sleep(RETRY_S)

    # ------------------------------------------------------------------------------------------- logs

    async def logs(self, job: str) -> list[str]:
        """The names of a job's logs."""
        return list((await self.call("GET", job_path(job, "logs")))["logs"])

    async def find_job(self, given: str) -> str:
        """See :meth:`slotwise.Client.find_job`."""
        try:
            return str((await self.call("GET", job_path(given)))["jid"])
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        names = {job["jid"]: job["name"] for job in (await self.call("GET", "/v1/jobs/overview"))["jobs"]}
        return one_of("job", given, names)

    async def find_worker(self, given: str) -> str:
        """See :meth:`slotwise.Client.find_worker`."""
        workers = (await self.call("GET", "/v1/taskmanagers"))["taskmanagers"]
        return one_of("worker", given, {worker["id"]: worker["host"] for worker in workers})

    async def archive(self, job: str) -> AsyncIterator[bytes]:
        """See :meth:`slotwise.Client.archive`."""
        try:
            async with self._http.stream("GET", job_path(job, "logs.zip"), timeout=None) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise ClusterError(problem_of(answer), answer.status_code)
                async for data in answer.aiter_raw():
                    yield data
        except httpx.HTTPError as error:
            raise ClusterError(f"the master at {self.url} went away: {error}") from error

    async def log(self, job: str, name: str, *, follow: bool = False, offset: int = 0) -> AsyncIterator[bytes]:
        """See :meth:`slotwise.Client.log`."""
        wish = log_call(job, name, follow=follow, offset=offset)
        try:
            async with self._http.stream(wish.method, wish.path, params=wish.params, timeout=None) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise ClusterError(problem_of(answer))
                async for data in answer.aiter_raw():
                    yield data
        except httpx.HTTPError as error:
            raise ClusterError(f"the master at {self.url} went away: {error}") from error
