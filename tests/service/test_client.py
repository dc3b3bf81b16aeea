"""slotwise.Client and slotwise.AsyncClient against a real master: the same calls, the same answers."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import slotwise
from slotwise import AsyncClient, Client
from slotwise.connection import ServerSentEvents
from slotwise.model.errors import ClusterError, UsageError
from slotwise.model.ids import JobId
from slotwise.model.job import JobState
from slotwise.model.resources import GIB
from tests.service.served import TOKEN, Served, served
from tests.unit.worlds import spec

Details = dict[str, Any]


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(call).parameters) for name, call in found if not name.startswith("_")}

    assert calls(Client) == calls(AsyncClient)


def test_the_package_imports_a_client_only_when_it_is_used() -> None:
    script = "import slotwise, sys; assert 'httpx' not in sys.modules; slotwise.Client; assert 'httpx' in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        _ = slotwise.Cleint


def test_a_program_is_submitted_watched_changed_and_cancelled(service: Served, program: Path) -> None:
    with Client(service.url, TOKEN) as client:
        job = client.submit(
            program,
            ["2013", 7],  # type: ignore[list-item]
            name="mine",
            executor_memory="2g",
            num_executors=3,
            conf={"spark.sql.ansi.enabled": True},
            env={"A": "b=c"},
            py_files=[program],
        )
        made = service.master.dispatcher.jobs[JobId(job)].spec
        assert (made.name, made.program, made.args) == ("mine", str(program), ("2013", "7"))
        assert (made.executor.heap_bytes, made.initial_executors) == (2 * GIB, 3)
        assert made.conf["spark.sql.ansi.enabled"] == "true"
        assert (made.env, made.py_files) == ({"A": "b=c"}, (str(program),))
        other = client.submit(spec(name="other"))
        assert [one["jid"] for one in client.jobs()] == [job, other]
        assert [one["jid"] for one in client.jobs(name="MIN", limit=1, order="-start")] == [job]
        assert client.jobs(state=["RUNNING"]) == client.jobs(state="FAILED") == []
        assert client.bounds(job) == (1, 3)
        client.scale(job, 2, 5)
        assert client.bounds(job) == (2, 5)
        assert client.explain(job)["jid"] == job
        assert client.events(job)[0]["name"] == "submitted"
        assert client.events(job, after=2**50) == []
        assert client.logs(job) == []
        with pytest.raises(ClusterError, match="has not ended within"):
            client.wait(job, timeout_s=0)
        phases: list[str] = []
        client.cancel(job)
        client.cancel(job)
        details = client.wait(job, lambda details: phases.append(details["phase"]), timeout_s=60, poll_s=0.01)
        assert details["state"] == phases[-1] == "CANCELED"
        with pytest.raises(ClusterError, match="there is no job nobody"):
            client.job("nobody")
        with pytest.raises(ClusterError, match="there is no"):
            client.job("../tokens")


def test_the_asynchronous_client_does_the_same(service: Served, program: Path) -> None:
    async def act() -> None:
        async with AsyncClient(service.url, TOKEN) as client:
            job = await client.submit(program, name="mine")
            assert [one["jid"] for one in await client.jobs()] == [job]
            await client.scale(job, 1, 4)
            assert await client.bounds(job) == (1, 4)
            assert (await client.explain(job))["jid"] == job
            assert (await client.events(job))[0]["name"] == "submitted"
            folder = service.master.options.directory / "jobs" / job / "logs"
            folder.mkdir()
            (folder / "driver-1.out").write_bytes(b"the answer\n")
            assert await client.logs(job) == ["driver-1.out"]
            assert b"".join([data async for data in client.log(job, "driver-1.out", offset=4)]) == b"answer\n"
            changes = client.changes(job)
            told = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            seen: list[str] = []

            async def progress(details: Details) -> None:
                seen.append(details["state"])

            await client.cancel(job)
            details = await client.wait(job, progress, timeout_s=60, poll_s=0.01)
            assert details["state"] == seen[-1] == "CANCELED"
            assert await asyncio.wait_for(told, 30) == (f"job:{job}",)
            with pytest.raises(ClusterError, match="there is no job nobody"):
                await client.job("nobody")
            with pytest.raises(ClusterError, match="has no log"):
                _ = [data async for data in client.log(job, "none")]

    asyncio.run(act())


def test_changes_go_on_over_a_restart_of_the_master(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        url, port = service.url, service.master.port
        job = service.submit()
        client = Client(url, TOKEN)
        changes = client.changes()
        service.run(service.master.cancel(job))
        assert f"job:{job}" in next(changes)
    with served(tmp_path, port=port) as service:
        # Another epoch: everything is to be fetched again.
        seen: set[str] = set()
        while not seen >= {"jobs", "workers", "resources", f"job:{job}"}:
            seen |= set(next(changes))
        assert service.url == url
        client.close()


def test_a_log_is_followed_until_the_job_is_over(service: Served) -> None:
    job = service.submit()
    folder = service.master.options.directory / "jobs" / job / "logs"
    folder.mkdir()
    path = folder / "driver-1.out"
    path.write_bytes(b"first ")
    with Client(service.url, TOKEN) as client:
        pieces = client.log(job, "driver-1.out", follow=True)
        assert next(pieces) == b"first "
        with path.open("ab") as file:
            file.write(b"second")
        service.run(service.master.cancel(job))
        assert b"".join(pieces) == b"second"
    assert service.master.dispatcher.jobs[job].state is JobState.CANCELED


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"executor_memroy": "2g"}, "did you mean 'executor_memory'"),
        ({"executor_memory": "lots"}, "lots"),
        ({"py_files": 7}, "list of paths"),
        ({"py_files": ["gone.zip"]}, "gone.zip"),
        ({"args": "one text"}, "list of the program's arguments"),
    ],
)
def test_what_cannot_be_is_an_error_before_anything_is_sent(
    service: Served, program: Path, options: Details, words: str
) -> None:
    with Client(service.url, TOKEN) as client, pytest.raises(UsageError, match=words):
        client.submit(program, **options)
    assert service.master.dispatcher.jobs == {}
    with Client(service.url, TOKEN) as client, pytest.raises(UsageError, match="whole specification"):
        client.submit(spec(), name="x")


def test_addresses_and_tokens_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("SLOTWISE_TOKEN", raising=False)
    with pytest.raises(ClusterError, match="no token"):
        Client("http://127.0.0.1:1")
    for url in ("127.0.0.1:1", "ftp://127.0.0.1", "http://127.0.0.1:99999", "http://["):
        with pytest.raises(ClusterError, match=r"--master|no master answers"), Client(url, TOKEN) as client:
            client.jobs()
    for token in ("a\nb", "é", "\x00"):
        with pytest.raises(ClusterError, match="no token"):
            Client("http://127.0.0.1:1", token)


def test_a_port_past_the_last_is_not_taken_for_another(service: Served) -> None:
    """The lower sixteen bits of it are the port of a master that would answer."""
    host, _, port = service.url.rpartition(":")
    with pytest.raises(ClusterError, match=r"write http://HOST:PORT"):
        Client(f"{host}:{int(port) + 2**16}", TOKEN)


def test_server_sent_events_are_read_as_the_standard_says() -> None:
    reader = ServerSentEvents()
    lines = [":comment", "id: 1-2", "event: changed", 'data: {"topics":', 'data: ["a"]}', "", "id: 1-3", "", "data", ""]
    assert [topics for line in lines[:8] for topics in reader.feed(line)] == [("a",)]
    assert reader.last_id == "1-3"
    assert list(reader.feed('data:{"topics":[]}')) == []
    reader.broke_off()
    assert list(reader.feed("")) == []
