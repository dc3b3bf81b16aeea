"""Both clients upload what a job needs: only what is missing, again when it breaks off, never whole in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slotwise import AsyncClient, Client
from slotwise.dispatcher.tokens import Role
from slotwise.dispatcher.uploads import BlobLimits
from slotwise.model.errors import ClusterError, UsageError
from slotwise.model.job import JobSpec
from slotwise.model.uploads import read_manifest
from slotwise.uploading import plan_upload
from tests.service.served import TOKEN, Served, served
from tests.unit.worlds import spec

MIB = 1024 * 1024
Submit = Callable[..., str]


@pytest.fixture(params=["sync", "async"])
def submit(request: pytest.FixtureRequest) -> Submit:
    """Submits as either client does."""

    def by_sync(url: str, *args: Any, token: str = TOKEN, **options: Any) -> str:
        with Client(url, token) as client:
            return client.submit(*args, **options)

    def by_async(url: str, *args: Any, token: str = TOKEN, **options: Any) -> str:
        async def run() -> str:
            async with AsyncClient(url, token) as client:
                return await client.submit(*args, **options)

        return asyncio.run(run())

    return by_sync if request.param == "sync" else by_async


def spec_of(service: Served, job: str) -> JobSpec:
    return next(record.spec for record in service.master.dispatcher.jobs.values() if record.job == job)


def names(service: Served, job: str) -> list[str]:
    uploads = spec_of(service, job).uploads
    assert uploads is not None
    return [file.name for file in read_manifest(b"".join(service.master.uploads.pieces(uploads.manifest))).files]


@contextlib.contextmanager
def cutting(port: int, after: int, times: int) -> Iterator[str]:
    """A proxy that cuts the first ``times`` connections which send more than ``after`` bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = [times]

    def pump(source: socket.socket, target: socket.socket, limit: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                passed += len(data)
                if limit is not None and passed > limit and left[0] > 0:
                    left[0] -= 1
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                threading.Thread(target=pump, args=(near, far, after), daemon=True).start()
                threading.Thread(target=pump, args=(far, near, None), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def test_only_what_is_missing_is_sent(service: Served, program: Path, tmp_path: Path, submit: Submit) -> None:
    (tmp_path / "data.csv").write_bytes(os.urandom(3 * MIB))
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    data = tmp_path / "data.csv"
    job = submit(service.url, program, ["2013"], upload="always", files=[data], on_upload=tell)
    assert names(service, job) == ["job.py", "data.csv"]
    assert spec_of(service, job).args == ("2013",)
    assert told[-1][0] == told[-1][1] > 3 * MIB
    received = service.master.uploads.received
    program.write_text("print('changed')\n")
    submit(service.url, program, upload="always", files=[tmp_path / "data.csv"])
    assert service.master.uploads.received - received < 1000


def test_a_job_on_this_machine_is_by_path_and_a_whole_specification_stays_as_it_is(
    service: Served, program: Path, submit: Submit
) -> None:
    assert spec_of(service, submit(service.url, program)).uploads is None
    assert spec_of(service, submit(service.url, spec(), upload="auto")) == spec()
    program.with_name("requirements.txt").write_text("pandas\n")
    mixed = spec_of(service, submit(service.url, program, requirements=program.with_name("requirements.txt")))
    assert mixed.program == str(program)
    assert mixed.uploads is not None
    assert mixed.uploads.environment == "requirements.txt"


def test_an_upload_that_is_cut_off_is_begun_again(
    service: Served, program: Path, tmp_path: Path, submit: Submit
) -> None:
    (tmp_path / "data.bin").write_bytes(os.urandom(4 * MIB))
    with cutting(service.master.port, MIB, times=2) as url:
        job = submit(url, program, upload="always", files=[tmp_path / "data.bin"])
    assert names(service, job) == ["job.py", "data.bin"]
    (tmp_path / "other.bin").write_bytes(os.urandom(4 * MIB))
    with cutting(service.master.port, MIB, times=99) as url, pytest.raises(ClusterError, match=r"other\.bin was not"):
        submit(url, program, upload="always", files=[tmp_path / "other.bin"])
    assert len(service.master.dispatcher.jobs) == 1


def test_what_is_too_large_is_said_before_it_is_sent(tmp_path: Path, program: Path, submit: Submit) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(2 * MIB))
    with (
        served(tmp_path / "store", blob_limits=BlobLimits(file_bytes=MIB)) as service,
        pytest.raises(UsageError, match=r"data\.bin has 2 MiB.*blob\.max-file-size"),
    ):
        submit(service.url, program, upload="always", files=[tmp_path / "data.bin"])


def test_a_viewer_may_not_upload_and_nothing_is_left_of_the_attempt(
    service: Served, program: Path, submit: Submit
) -> None:
    with pytest.raises(ClusterError, match="needs the role submitter"):
        submit(service.url, program, upload="always", token=service.token("eve", Role.VIEWER))
    assert service.master.uploads.count == 0
    assert submit(service.url, program, upload="always", token=service.token("ann", Role.SUBMITTER))


def test_files_that_went_between_upload_and_submission_are_sent_again(
    service: Served, program: Path, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted, lost = type(service.master.uploads).admitted, [True]

    def losing(self: Any, given: JobSpec) -> Any:
        if lost:
            lost.clear()
            for name in list(self._sizes):
                self._store.remove(name)
            self._sizes.clear()
        return admitted(self, given)

    monkeypatch.setattr(type(service.master.uploads), "admitted", losing)
    assert submit(service.url, program, upload="always")
    assert lost == []


def test_a_file_that_changes_while_it_is_sent_is_refused(service: Served, program: Path) -> None:
    plan = plan_upload(msgspec.structs.replace(spec(), program=str(program)))
    program.write_text("PRINT('never')\n")
    with Client(service.url, TOKEN) as client, pytest.raises(ClusterError, match=r"job\.py was not uploaded.*changed"):
        client.upload(plan)


def test_a_large_file_is_never_whole_in_memory(service: Served, program: Path, tmp_path: Path, submit: Submit) -> None:
    with (tmp_path / "sparse.bin").open("wb") as file:
        file.truncate(128 * MIB)
    tracemalloc.start()
    submit(service.url, program, upload="always", files=[tmp_path / "sparse.bin"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * MIB
