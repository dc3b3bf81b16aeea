"""A real master in this process: what it recovers, and what it does when its disk or a component fails. No Spark."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from slotwise.client import Client
from slotwise.dispatcher.files import LocalFiles
from slotwise.dispatcher.job_store import FileJobStore
from slotwise.ha.base import NotLeader
from slotwise.jobmaster.machine import JobMaster
from slotwise.master import Master, MasterOptions
from slotwise.model.errors import ClusterError, EnvironmentProblem, StoreError
from slotwise.model.ids import (
    DISPATCHER,
    RESOURCE_MANAGER,
    AllocationId,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.job import JobResult, JobState
from slotwise.model.progress import JobProgress
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.effects import (
    Effects,
    Event,
    PersistJob,
    PersistProgress,
    PersistResult,
    StartWorker,
    WorkerExited,
)
from slotwise.protocol.messages import Envelope, Fenced, FreeSlots, JobMasterHeartbeat, JobStatus
from slotwise.provisioners.local import LocalProvisioner
from slotwise.provisioners.worker_records import WorkerProcess, WorkerRecord, WorkerRecords, end_all, process_of
from slotwise.runtime.events import EventLog
from tests.unit.worlds import spec

TOKEN = "t" * 64
JOB = JobId("job-a")
RESULT = JobResult(JobState.FINISHED, 0, "all is well")
SIZE = ResourceProfile(1000, GIB)


def options(directory: Path, **more: Any) -> MasterOptions:
    return MasterOptions(directory=directory, token=TOKEN, **more)


def with_master(directory: Path, act: Callable[[Master], Awaitable[None]], *, leave: bool = True) -> None:
    """Run ``act`` against a master in ``directory``."""

    async def run() -> None:
        master = Master(options(directory))
        await master.start()
        try:
            await act(master)
        finally:
            await master.close(leave=leave)

    asyncio.run(asyncio.wait_for(run(), 60))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def full(_: int) -> None:
    raise OSError(28, os.strerror(28))


def status(master: Master, state: JobState, result: JobResult | None, seq: int = 1) -> Effects:
    """What a JobMaster says at its end."""
    jm, token = job_master_address(JOB), LeaderToken(master.dispatcher.token)
    effects = Effects()
    if result is not None:
        effects.persist.append(PersistResult(JOB, result, token))
    payload = JobStatus(JOB, seq, state, result)
    effects.send.append(Envelope(seq, DISPATCHER, LeaderToken(0), jm, token, payload))
    free = FreeSlots(JOB, (AllocationId("slot-a"),), "the job is over")
    effects.send.append(Envelope(seq, worker_address(WorkerId("worker-a")), LeaderToken(0), jm, token, free))
    return effects


def queue_of(master: Master, worker: str = "worker-a") -> asyncio.Queue[Any]:
    queue: asyncio.Queue[Any] = asyncio.Queue()
    master._workers[worker_address(WorkerId(worker))] = queue
    return queue


# ----------------------------------------------------------------------------------------------- recovery


def test_f_06_f_07_jobs_are_there_for_the_next_master_and_keys_are_known(tmp_path: Path) -> None:
    jobs: list[JobId] = []

    async def first(master: Master) -> None:
        jobs.append(await master.submit(spec(name="one"), key="one"))
        jobs.append(await master.submit(spec(name="two"), key="two"))

    async def second(master: Master) -> None:
        assert list(master.dispatcher.jobs) == jobs
        assert await master.submit(spec(name="one"), key="one") == jobs[0]
        with pytest.raises(ClusterError, match="was used for another job"):
            await master.submit(spec(name="other"), key="two")
        await until(lambda: set(master.job_masters) == set(jobs))
        # Every leader of this master is above those of the one before.
        assert all(machine.token > 1_000_000 for machine in master.job_masters.values())
        assert min(master.resource_manager.token, master.dispatcher.token) == 2_000_000

    with_master(tmp_path, first)
    with_master(tmp_path, second)


def test_f_07_an_ended_job_is_shown_with_times_log_and_reason(tmp_path: Path) -> None:
    store = FileJobStore(LocalFiles(tmp_path))
    store.persist(PersistJob(JOB, "key", spec(name="old")))
    store.persist(PersistResult(JOB, RESULT, LeaderToken(1_000_000)))
    (tmp_path / "epoch").write_text("7\n")
    log = EventLog(tmp_path / "jobs", 7)
    log.add([Event("submitted", JOB), Event("job-state", JOB, fields={"state": "FINISHED"})])
    (tmp_path / "jobs" / JOB / "logs").mkdir()
    (tmp_path / "jobs" / JOB / "logs" / "driver-1.out").write_text("the answer\n")

    async def act(master: Master) -> None:
        def calls() -> None:
            with Client(master.url, TOKEN) as client:
                details = client.job(JOB)
                assert (details["state"], details["exit-code"], details["released"]) == ("FINISHED", 0, True)
                assert details["reason"] == "all is well"
                assert 0 < details["start-time"] <= details["end-time"]
                # A listing leaves out the parts of each job.
                (listed,) = client.call("GET", "/v1/jobs/overview")["jobs"]
                assert listed.items() <= details.items()
                assert not {"vertices", "plan", "timestamps"} & set(listed)
                (vertex,) = details["vertices"]
                assert (vertex["id"], vertex["status"]) == ("application", "FINISHED")
                events = client.call("GET", f"/v1/jobs/{JOB}/events")["events"]
                assert [event["name"] for event in events] == ["submitted", "job-state"]
                assert client.call("GET", f"/v1/jobs/{JOB}/logs") == {"logs": ["driver-1.out"]}
                assert b"".join(client.log(JOB, "driver-1.out", follow=True)) == b"the answer\n"
                assert "has ended: all is well" in client.call("GET", f"/v1/jobs/{JOB}/explain")["summary"]
                cancelled = client.call("PATCH", f"/v1/jobs/{JOB}?mode=cancel")
                assert cancelled["state"] == "FINISHED"

        await asyncio.to_thread(calls)
        assert master.job_masters == {}

    with_master(tmp_path, act)


def test_a_cancel_is_recorded_and_carried_out_by_the_next_master(tmp_path: Path) -> None:
    async def first(master: Master) -> None:
        job = await master.submit(spec(), key="one")
        # Gone before its JobMaster could do anything.
        master._retire(job_master_address(job))
        await master.cancel(job)

    async def second(master: Master) -> None:
        (record,) = master.dispatcher.jobs.values()
        await until(lambda: record.state is JobState.CANCELED)

    with_master(tmp_path, first)
    with_master(tmp_path, second)


def test_a_second_master_is_refused_and_a_place_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        with pytest.raises(NotLeader, match=f"pid {os.getpid()} on .* at {master.url} leads here already"):
            await Master(options(tmp_path)).start()
        await master.submit(spec())

    with_master(tmp_path, act)
    (tmp_path / "file").write_text("")

    async def nowhere() -> None:
        with pytest.raises(EnvironmentProblem, match="cannot use"):
            await Master(options(tmp_path / "file" / "store")).start()
        (tmp_path / "epoch").unlink()
        with pytest.raises(EnvironmentProblem, match="epoch is missing, but there are jobs"):
            await Master(options(tmp_path)).start()

    asyncio.run(nowhere())


def test_a_master_whose_port_is_taken_leads_no_more(tmp_path: Path) -> None:
    async def act(other: Master) -> None:
        with pytest.raises(EnvironmentProblem, match="cannot listen"):
            await Master(options(tmp_path / "mine", port=other.port)).start()
        master = Master(options(tmp_path / "mine"))
        await master.start()
        await master.close()

    with_master(tmp_path / "other", act)


def test_a_master_without_a_wish_comes_back_at_the_same_port(tmp_path: Path) -> None:
    ports = []

    async def act(master: Master) -> None:
        ports.append(master.port)

    with_master(tmp_path, act)
    with_master(tmp_path, act)
    assert ports[0] == ports[1]


def test_a_store_of_a_newer_version_ends_the_start(tmp_path: Path) -> None:
    FileJobStore(LocalFiles(tmp_path)).persist(PersistJob(JOB, "key", spec()))
    (tmp_path / "epoch").write_text("1\n")
    path = tmp_path / "jobs" / JOB / "job.json"
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":9'))

    async def run() -> None:
        with pytest.raises(StoreError, match="newer version"):
            await Master(options(tmp_path)).start()

    asyncio.run(run())


# ----------------------------------------------------------------------------------------------- a disk that fails


def test_f_06_a_job_and_a_cancel_that_cannot_be_recorded_are_refused_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(master: Master) -> None:
        job = await master.submit(spec(), key="one")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", full)
            with pytest.raises(ClusterError, match=r"cannot write .*job\.json: No space left on device"):
                await master.submit(spec(name="two"), key="two")
            with pytest.raises(ClusterError, match=r"cannot write .*cancel\.json: No space left on device"):
                await master.cancel(job)
        assert list(master.dispatcher.jobs) == [job]
        assert list(master.job_masters) == [job]
        assert not master.dispatcher.jobs[job].cancelling
        second = await master.submit(spec(name="two"), key="two")
        assert second != job
        await master.cancel(job)
        await until(lambda: master.dispatcher.jobs[job].state is JobState.CANCELED)
        assert master.crashed is not None
        assert not master.crashed.done()

    with_master(tmp_path, act)


def test_progress_that_cannot_be_recorded_is_not_acted_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(master: Master) -> None:
        job = await master.submit(spec())
        queue = queue_of(master)
        token = master.job_masters[job].token

        def effects() -> Effects:
            heartbeat = Envelope(
                1,
                worker_address(WorkerId("worker-a")),
                LeaderToken(0),
                job_master_address(job),
                token,
                JobMasterHeartbeat(job),
            )
            return Effects([PersistProgress(job, JobProgress(token, attempt=1))], [heartbeat])

        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", full)
            master._carry_out(effects())
        assert queue.empty()
        assert job not in master._records.progress
        assert "No space left" in str(master.events.of_job(job)[-1].fields["reason"])
        master._carry_out(effects())
        assert queue.qsize() == 1
        assert master._records.progress[job].attempt == 1

    with_master(tmp_path, act)


def test_f_07_a_result_that_cannot_be_recorded_is_tried_again_and_held_back_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileJobStore(LocalFiles(tmp_path)).persist(PersistJob(JOB, "key", spec()))
    (tmp_path / "epoch").write_text("1\n")

    async def act(master: Master) -> None:
        record = master.dispatcher.jobs[JOB]
        await until(lambda: JOB in master.job_masters)
        await master._actors[job_master_address(JOB)].stop()
        queue = queue_of(master)
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", full)
            for seq in (1001, 1002):
                master._carry_out(status(master, JobState.FINISHED, RESULT, seq))
            master._records.retry()
            await asyncio.sleep(0.05)
            # Neither is the job shown as ended, nor are its slots given back.
            assert not record.state.is_final
            assert queue.empty()
        await until(lambda: not master._records.unwritten)
        master._carry_out(status(master, JobState.FINISHED, RESULT, 1003))
        await until(lambda: record.state is JobState.FINISHED)
        assert queue.qsize() == 1

    with_master(tmp_path, act)
    assert FileJobStore(LocalFiles(tmp_path)).recover()[0].result == RESULT


def test_a_result_that_could_not_be_recorded_is_written_at_the_end_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(master: Master) -> None:
        FileJobStore(LocalFiles(tmp_path)).persist(PersistJob(JOB, "key", spec()))
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", full)
            master._carry_out(status(master, JobState.FINISHED, RESULT))

    with_master(tmp_path, act)
    assert FileJobStore(LocalFiles(tmp_path)).recover()[0].result == RESULT


def test_a_directory_that_is_away_for_a_while_refuses_jobs_and_loses_none(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        job = await master.submit(spec(), key="one")
        (tmp_path / "store").rename(tmp_path / "away")
        with pytest.raises(ClusterError, match="cannot write"):
            await master.submit(spec(), key="two")
        assert not (tmp_path / "store").exists()
        (tmp_path / "away").rename(tmp_path / "store")
        assert await master.submit(spec(), key="one") == job
        await master.submit(spec(), key="two")

    with_master(tmp_path / "store", act)


# ----------------------------------------------------------------------------------------------- components that fail


def test_f_03_a_job_master_that_fails_is_followed_by_another_with_the_jobs_record(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        job, other = await master.submit(spec(name="one")), await master.submit(spec(name="two"))
        machine, untouched = master.job_masters[job], master.job_masters[other]
        progress = JobProgress(machine.token, attempt=1, executor_ids_below=1001)
        master._carry_out(Effects([PersistProgress(job, progress)]))

        def planted(stimulus: Envelope, now: float) -> Effects:
            raise RuntimeError("planted")

        machine.handle = planted  # type: ignore[method-assign]
        master.post(
            Envelope(
                1,
                job_master_address(job),
                LeaderToken(0),
                RESOURCE_MANAGER,
                LeaderToken(0),
                Fenced(DISPATCHER, LeaderToken(0)),
            )
        )
        await until(lambda: master.job_masters.get(job) not in (None, machine))
        successor = master.job_masters[job]
        assert isinstance(successor, JobMaster)
        assert successor.token > machine.token
        assert successor.driver_starts == 1
        assert master.job_masters[other] is untouched
        assert master.crashed is not None
        assert not master.crashed.done()
        assert any(event.name == "job-master-failed" for event in master.events.of_job(job))

    with_master(tmp_path, act)


@pytest.mark.parametrize("address", [DISPATCHER, RESOURCE_MANAGER])
def test_ml_07_a_master_that_is_told_of_a_newer_leader_ends(tmp_path: Path, address: Any) -> None:
    async def act(master: Master) -> None:
        token = master.dispatcher.token
        sender = worker_address(WorkerId("worker-a"))
        master.post(Envelope(1, address, token, sender, LeaderToken(0), Fenced(address, LeaderToken(9_000_000))))
        assert master.crashed is not None
        reason = await asyncio.wait_for(master.crashed, 10)
        assert "another master has taken over" in reason
        assert "9000000" in reason

    with_master(tmp_path, act)


def test_ml_07_a_master_whose_job_has_the_record_of_a_newer_leader_ends(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        job = await master.submit(spec())
        FileJobStore(LocalFiles(tmp_path)).persist(PersistProgress(job, JobProgress(LeaderToken(9_000_000))))
        queue = queue_of(master)
        token = master.job_masters[job].token
        effects = status(master, JobState.RUNNING, None)
        effects.persist.append(PersistProgress(job, JobProgress(token)))
        master._carry_out(effects)
        assert master.crashed is not None
        assert "9000000" in await asyncio.wait_for(master.crashed, 10)
        assert queue.empty()

    with_master(tmp_path, act)


def test_a_master_that_leads_no_more_writes_and_sends_nothing(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        job = await master.submit(spec())
        other = Master(options(tmp_path))
        (tmp_path / "lock").unlink()
        await other.start()
        assert master.crashed is not None
        assert "may lead" in await asyncio.wait_for(master.crashed, 10)
        master._carry_out(Effects([PersistProgress(job, JobProgress(LeaderToken(1_500_000)))]))
        assert FileJobStore(LocalFiles(tmp_path)).recover()[0].progress is None
        await other.close(leave=True)

    with_master(tmp_path, act)


# ----------------------------------------------------------------------------------------------- workers from before


def wish(worker: str) -> StartWorker:
    return StartWorker(WorkerId(worker), SIZE, SIZE)


def sleeper(worker: str) -> subprocess.Popen[bytes]:
    """A process that looks like a worker."""
    script = "import time; print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script, "slotwise", worker], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def test_a_provisioner_takes_over_what_lives_reports_what_ended_and_ends_what_looks_elsewhere(tmp_path: Path) -> None:
    url = "http://127.0.0.1:8090"
    living, unrecorded, elsewhere = sleeper("w-living"), sleeper("w-unrecorded"), sleeper("w-elsewhere")
    records = WorkerRecords(tmp_path / "workers.json")
    for name, process, where in (("w-living", living, url), ("w-elsewhere", elsewhere, "http://127.0.0.1:9")):
        records.put(WorkerRecord(wish(name), where, process_of(process.pid)))
    # The earlier master died before it could note the process; and a process id that is another's now.
    records.put(WorkerRecord(wish("w-unrecorded"), url))
    records.put(WorkerRecord(wish("w-other"), url, WorkerProcess(os.getpid(), 1.0)))
    records.put(WorkerRecord(wish("w-never"), url))
    exits: list[WorkerExited] = []

    async def run() -> None:
        provisioner = LocalProvisioner(tmp_path, url, tmp_path / "token", exits.append, bound=False)
        before = provisioner.recover()
        assert before.living == (wish("w-living"), wish("w-unrecorded"))
        assert before.ended == ("w-other", "w-never")
        await until(lambda: [exited.worker for exited in exits] == ["w-elsewhere"])
        unrecorded.kill()
        await until(lambda: len(exits) == 2)
        assert exits[1] == WorkerExited(WorkerId("w-unrecorded"), "its process ended", started=True)
        # Left alone by one that leaves, ended by one that closes.
        await provisioner.close(5, leave=True)
        assert living.poll() is None
        again = LocalProvisioner(tmp_path, url, tmp_path / "token", exits.append, bound=False)
        assert again.recover().living == (wish("w-living"),)
        await again.close(5)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert [process.wait(10) for process in (living, unrecorded, elsewhere)] == [-15, -9, -15]
    assert records.load() == []


def test_without_a_master_the_recorded_workers_can_be_ended(tmp_path: Path) -> None:
    process = sleeper("w-left")
    WorkerRecords(tmp_path / "workers.json").put(WorkerRecord(wish("w-left"), "http://x"))
    assert end_all(tmp_path / "workers.json", 10) == 1
    assert process.wait(10) == -15
    assert end_all(tmp_path / "workers.json", 10) == 0
    (tmp_path / "workers.json").write_text("garbage")
    assert WorkerRecords(tmp_path / "workers.json").load() == []
