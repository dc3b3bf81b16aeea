"""Logs as they are kept and served by a real master: of jobs, workers and masters. One test with Spark."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotwise.cli.main import main
from slotwise.dispatcher.files import LocalFiles
from slotwise.dispatcher.job_store import FileJobStore
from slotwise.master import Master
from slotwise.model.ids import JobId, LeaderToken, WorkerId
from slotwise.protocol.codec import LogData, LogPosition, decode, encode
from slotwise.protocol.effects import Event, PersistJob, PersistResult
from slotwise.provisioners import local
from slotwise.runtime.events import EventLog
from slotwise.runtime.logs import LogLimits
from tests.integration.clusters import PROGRAMS, SMALL, Cluster, sandbox_at, wait_for
from tests.integration.test_master import RESULT, TOKEN, options, until
from tests.integration.test_operations import calls
from tests.integration.test_stream_edges import HELLO, WORKER, dial, register
from tests.unit.worlds import spec

DAY_S = 86400.0


async def served(directory: Path, act: Any, **more: Any) -> None:
    master = Master(options(directory, **more))
    await master.start()
    try:
        await act(master)
    finally:
        await master.close(leave=True)


def serve(directory: Path, act: Any, **more: Any) -> None:
    asyncio.run(asyncio.wait_for(served(directory, act, **more), 60))


def ended(directory: Path, job: str, text: bytes = b"the answer\n", name: str = "driver-1.out") -> JobId:
    """An ended job of an earlier master, with a log."""
    store = FileJobStore(LocalFiles(directory))
    store.persist(PersistJob(JobId(job), f"key of {job}", spec(name=job)))
    store.persist(PersistResult(JobId(job), RESULT, LeaderToken(1_000_000)))
    (directory / "epoch").write_text("1\n")
    EventLog(directory / "jobs").add([Event("submitted", JobId(job)), Event("job-state", JobId(job), None, None, DONE)])
    folder = directory / "jobs" / job / "logs"
    folder.mkdir()
    (folder / name).write_bytes(text)
    return JobId(job)


DONE: dict[str, str | int | float | None] = {"state": "FINISHED"}


def test_all_logs_of_a_job_are_one_zip_also_under_the_next_master(tmp_path: Path) -> None:
    job = ended(tmp_path, "job-a")
    chunk = b"".join(b"%07d\n" % number for number in range(4000))

    async def first(master: Master) -> None:
        for offset in range(0, len(chunk), 8000):
            master.logs.write(LogData(job, "executor-1.log", offset, chunk[offset : offset + 8000]))

    async def second(master: Master) -> None:
        answer = await calls(master, lambda client: client.get(f"/v1/jobs/{job}/logs.zip"))
        assert answer.headers["content-type"] == "application/zip"
        assert f'filename="{job}-logs.zip"' in answer.headers["content-disposition"]
        with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
            assert archive.testzip() is None
            assert all(entry.date_time[0] > 2000 for entry in archive.infolist())
            assert sorted(archive.namelist()) == [
                f"{job}/events.jsonl",
                f"{job}/logs/driver-1.out",
                f"{job}/logs/executor-1.log",
            ]
            assert archive.read(f"{job}/logs/driver-1.out") == b"the answer\n"
            cut = archive.read(f"{job}/logs/executor-1.log")
        assert cut.startswith(b"0000000\n")
        assert b"bytes are cut out here" in cut
        assert cut.endswith(b"0003999\n")
        # The same text as a reader of the one log gets.
        answer = await calls(master, lambda client: client.get(f"/v1/jobs/{job}/logs/executor-1.log"))
        assert answer.content == cut
        answer = await calls(master, lambda client: client.get("/v1/jobs/job-none/logs.zip"))
        assert answer.status_code == 404
        wrong = {"Authorization": "Bearer wrong"}
        answer = await calls(master, lambda client: client.get(f"/v1/jobs/{job}/logs.zip", headers=wrong))
        assert answer.status_code == 401

    serve(tmp_path, first, log_limits=LogLimits(file_bytes=10_000))
    serve(tmp_path, second, log_limits=LogLimits(file_bytes=10_000))


def test_the_command_line_downloads_a_jobs_logs_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ended(tmp_path / "master", "job-a")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    target = tmp_path / "logs.zip"

    def slotwise(*argv: str) -> int:
        with pytest.raises(SystemExit) as over:
            main(list(argv))
        assert isinstance(over.value.code, int)
        return over.value.code

    async def act(master: Master) -> None:
        where = ("--master", master.url, "--token-file", str(token))
        assert await asyncio.to_thread(slotwise, "logs", job, "--download", str(target), *where) == 0
        with zipfile.ZipFile(target) as archive:
            assert archive.read(f"{job}/logs/driver-1.out") == b"the answer\n"
        target.unlink()
        master.logs.remove(job, "they were too old")
        assert await asyncio.to_thread(slotwise, "logs", job, "--download", str(target), *where) == 1
        assert "they were too old" in capsys.readouterr().err
        assert not list(tmp_path.glob("logs.zip*"))

    serve(tmp_path / "master", act)


def test_logs_of_jobs_that_ended_long_ago_are_removed_and_who_asks_is_told(tmp_path: Path) -> None:
    jobs = [ended(tmp_path, f"job-{letter}") for letter in "abc"]
    for days, job in enumerate(jobs):
        path = tmp_path / "jobs" / job / "events.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["unix_s"] -= (3 - days) * DAY_S
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    async def act(master: Master) -> None:
        running = await master.submit(spec(name="running"))
        master.logs.write(LogData(running, "driver-1.out", 0, b"still there\n"))
        await until(lambda: not master.logs.has_logs(jobs[1]) and not master.logs.has_logs(jobs[0]))
        assert master.logs.names(jobs[2]) == master.logs.names(running) == ["driver-1.out"]

        def with_client(client: httpx.Client) -> None:
            answer = client.get(f"/v1/jobs/{jobs[0]}/logs/driver-1.out")
            assert answer.status_code == 404
            assert "job.logs.retention.max-age" in answer.json()["detail"]
            assert client.get(f"/v1/jobs/{jobs[0]}").json()["state"] == "FINISHED"
            assert len(client.get(f"/v1/jobs/{jobs[0]}/events").json()["events"]) == 2

        await calls(master, with_client)

    serve(tmp_path, act, log_limits=LogLimits(ended_s=1.5 * DAY_S))


def test_of_a_cut_log_a_follower_of_a_running_job_misses_nothing(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        job = await master.submit(spec())
        lines = [b"%07d\n" % number for number in range(3000)]
        sent = 0

        def more(count: int) -> None:
            nonlocal sent
            data = b"".join(lines[sent : sent + count])
            assert master.logs.write(LogData(job, "driver-1.out", sent * 8, data)) is None
            sent += count

        more(10)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx.AsyncClient(base_url=master.url, headers=headers, trust_env=False, timeout=30) as client,
            client.stream("GET", f"/v1/jobs/{job}/logs/driver-1.out?follow=1") as answer,
        ):
            seen = b""
            async for data in answer.aiter_raw():
                seen += data
                if len(seen) == len(lines) * 8:
                    break
                if len(seen) == sent * 8:
                    more(min(100, len(lines) - sent))
        assert seen == b"".join(lines)
        assert master.logs.cut_bytes > 0

    serve(tmp_path, act, log_limits=LogLimits(file_bytes=8000))


def test_a_worker_sends_its_own_log_and_it_is_there_when_the_worker_is_gone(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        async with dial(master) as worker:
            await worker.send(encode(HELLO))
            await worker.send(encode(register()))
            await worker.recv()
            answer = await calls(master, lambda client: client.get(f"/v1/taskmanagers/{WORKER}/logs"))
            assert answer.json() == {"logs": []}
            await worker.send(encode(LogData("", "worker-1.log", 0, b"one\n")))
            await worker.send(encode(LogData("", "../../escapes", 0, b"bad\n")))
            await worker.send(encode(LogData("", "worker-1.log", 4, b"two\n")))
            await until((tmp_path / "worker-logs" / WORKER / "worker-1.log").exists)
            # One that belongs to a job is answered as before.
            await worker.send(encode(LogData("job-x", "driver-1.out", 9, b"x")))
            while not isinstance(frame := decode(bytes(await worker.recv())), LogPosition):
                pass
            assert frame.job == "job-x"
        await until(lambda: not master.knows_worker(WORKER))

        def with_client(client: httpx.Client) -> None:
            (found,) = client.get(f"/v1/taskmanagers/{WORKER}/logs").json()["logs"]
            assert (found["name"], found["size"]) == ("worker-1.log", 8)
            assert client.get(f"/v1/taskmanagers/{WORKER}/logs/worker-1.log").text == "one\ntwo\n"
            for name in ("other.log", "..%2Fworker-1.log", "..%2F..%2Fepoch"):
                assert client.get(f"/v1/taskmanagers/{WORKER}/logs/{name}").status_code == 404
            assert client.get("/v1/taskmanagers/worker-none/logs").status_code == 404
            assert client.get("/v1/taskmanagers/..%2Fjobs/logs").status_code == 404

        await calls(master, with_client)
        assert not (tmp_path / "escapes").exists()

    serve(tmp_path, act)


def test_files_of_the_master_and_of_workers_that_it_started_are_served(tmp_path: Path) -> None:
    (tmp_path / "master.log").write_text("event=up\n")
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "worker-b.log").write_text("Traceback …\n")

    async def act(master: Master) -> None:
        def with_client(client: httpx.Client) -> None:
            (own,) = client.get("/v1/jobmanager/logs").json()["logs"]
            assert own["name"] == "master.log"
            assert own["mtime"] > 0
            assert client.get("/v1/jobmanager/logs/master.log").text == "event=up\n"
            assert client.get("/v1/jobmanager/logs/token").status_code == 404
            assert client.get("/v1/taskmanagers/worker-b/logs/worker-b.log").text == "Traceback …\n"

        await calls(master, with_client)

    serve(tmp_path, act, log_file=tmp_path / "master.log", worker_logs=tmp_path / "workers")
    serve(tmp_path, without_files)


async def without_files(master: Master) -> None:
    answer = await calls(master, lambda client: client.get("/v1/jobmanager/logs"))
    assert answer.json() == {"logs": []}
    assert master.worker_logs(WorkerId("../x")) == []


def test_logs_of_local_workers_that_are_gone_do_not_add_up_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_KEPT_LOGS", 2)
    for number in range(5):
        path = tmp_path / f"worker-{number}.log"
        path.write_text("said\n")
        os.utime(path, (number, number))
    provisioner = local.LocalProvisioner(tmp_path, "http://127.0.0.1:1", tmp_path / "token", print, bound=False)
    # The oldest log is of one that lives.
    monkeypatch.setattr(provisioner, "_lives", lambda worker: worker == "worker-0")
    provisioner._clean_up(WorkerId("worker-4"), 0)
    assert sorted(path.stem for path in tmp_path.glob("*.log")) == ["worker-0", "worker-3", "worker-4"]


@pytest.mark.spark
def test_no_secret_is_in_any_log_of_a_whole_run_and_every_line_can_be_read_by_a_program(tmp_path: Path) -> None:
    verbose = ("--log-level", "debug", "--log-format", "json")
    with sandbox_at(tmp_path) as sandbox:
        cluster = Cluster(sandbox)
        cluster.start_master(*verbose)
        cluster.start_worker("--cpus", "4", "--memory", "4g", *verbose)
        done = sandbox.run("submit", "--quiet", *SMALL, "--num-executors", "1", str(PROGRAMS / "slow_sum.py"), "0", "2")
        job = done.stdout.strip()
        folder = tmp_path / "state" / "master" / "jobs" / job
        # What the job has of secrets is in its record as long as it runs.
        progress = folder / "progress.json"
        secrets = {(tmp_path / "state" / "token").read_text().strip()}

        def over() -> bool:
            if progress.exists():
                secrets.update(re.findall(r'"secret": ?"([^"]+)"', progress.read_text()))
            return (folder / "result.json").exists()

        wait_for(over, 120, "the end of the job")
        assert len(secrets) >= 2
        workers = tmp_path / "state" / "master" / "worker-logs"
        wait_for(lambda: any(workers.rglob("worker-1.log")), 10, "the worker's own log")
        cluster.stop()
    own = [tmp_path / "master-0.log", tmp_path / "worker-1.log", *workers.rglob("worker-1.log")]
    kept = [path for path in folder.rglob("*") if path.is_file() and "logs" in path.parts] + [folder / "events.jsonl"]
    assert {"driver-1.out", "executor-1.log", "events.jsonl"} <= {path.name for path in kept}
    for path in [*own, *kept]:
        text = path.read_text(errors="replace")
        for secret in secrets:
            assert secret not in text, path
    lines = [line for path in own for line in path.read_text().splitlines() if not line.startswith("slotwise: ")]
    told = [json.loads(line) for line in lines]
    assert all({"timestamp", "level", "event", "component"} <= set(line) for line in told)
    assert all("worker" in line for line in told if line["component"] == "worker")
    assert {"submitted", "worker-registered", "acquired", "process-starting"} <= {line["event"] for line in told}
    acquired = next(line for line in told if line["event"] == "acquired")
    assert {"job", "worker", "allocation", "message", "message_kind"} <= set(acquired)
