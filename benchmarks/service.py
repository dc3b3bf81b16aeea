"""The service over HTTP: what a submission, the overviews and the event stream cost on a large cluster.

A real master with a real port: 1,000 jobs in its store, a ResourceManager with 1,000 workers and 10,000 slots, 500
watchers of the event stream. Callers are in this process, in a thread of their own, so a figure holds both sides.
`--check` compares with bounds.toml."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import Case, arguments, case, check, median, show
from _sizes import WORKER, profile, sixty_four
from slotwise import __version__
from slotwise.dispatcher.files import LocalFiles
from slotwise.dispatcher.job_store import FileJobStore
from slotwise.master import Master, MasterOptions
from slotwise.model.ids import (
    RESOURCE_MANAGER,
    UNKNOWN_TOKEN,
    AllocationId,
    JobId,
    LeaderToken,
    WorkerId,
    worker_address,
)
from slotwise.model.job import DriverSize, ExecutorSize, JobResult, JobSpec, JobState
from slotwise.model.resources import GIB, MIB, ResourceProfile
from slotwise.protocol.effects import Event, PersistJob, PersistResult
from slotwise.protocol.messages import Envelope, RegisterWorker, SlotReport, SlotStatus
from slotwise.resourcemanager.config import ResourceManagerConfig

TOKEN = "b" * 64
JOBS, WORKERS, SLOTS, WATCHERS = 1000, 1000, 10_000, 500
ROUNDS = 50
CHANGES = 20


def spec(number: int) -> JobSpec:
    """A job like any other."""
    return JobSpec(
        name=f"job number {number}",
        program="/srv/programs/job.py",
        args=("--date", "2013-01-01"),
        conf={"spark.sql.shuffle.partitions": "200"},
        driver=DriverSize(1, GIB, 384 * MIB),
        executor=ExecutorSize(1, 2 * GIB, 384 * MIB),
    )


def fill_store(directory: Path) -> None:
    """Jobs that have ended, as masters before have left them."""
    from slotwise.runtime.events import EventLog

    store = FileJobStore(LocalFiles(directory))
    (directory / "epoch").write_text("1\n")
    events = EventLog(directory / "jobs", 1)
    for number in range(JOBS):
        job = JobId(f"job-{number:08d}")
        store.persist(PersistJob(job, f"key-{number}", spec(number)))
        store.persist(PersistResult(job, JobResult(JobState.FINISHED, 0, ""), LeaderToken(1)))
        states = ("WAITING_FOR_RESOURCES", "DEPLOYING", "RUNNING", "FINISHED")
        events.add([Event("submitted", job), *(Event("job-state", job, fields={"state": state}) for state in states)])


def fill_cluster(master: Master) -> None:
    """Workers that report the slots of a hundred jobs."""
    rm, drawn, made = master.resource_manager, random.Random(1), 0
    sizes = [profile(size) for size in sixty_four()]
    for number in range(WORKERS):
        worker, total = WorkerId(f"worker-{number:06d}"), profile(WORKER) * 4
        free, slots = total, []
        for _ in range(SLOTS // WORKERS):
            size = drawn.choice(sizes)
            free -= size
            slots.append(SlotStatus(AllocationId(f"slot-{made:08d}"), JobId(f"job-{made % 100:08d}"), size))
            made += 1
        default = ResourceProfile(1000, GIB)
        message = RegisterWorker(worker, "host", 1, __version__, total, default, SlotReport(1, tuple(slots), free))
        envelope = Envelope(0, RESOURCE_MANAGER, rm.token, worker_address(worker), UNKNOWN_TOKEN, message)
        rm.handle(envelope, time.monotonic())
    assert len(rm.slots.workers) == WORKERS
    assert sum(len(entry.slots) for entry in rm.slots.workers.values()) == SLOTS


@contextmanager
def running(directory: Path) -> Iterator[tuple[Master, asyncio.AbstractEventLoop]]:
    """The master in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(120)

    # Nobody is silent here, however long a case takes.
    config = ResourceManagerConfig(heartbeat_timeout_s=1e9)
    master = Master(MasterOptions(directory=directory, token=TOKEN, resource_manager=config))
    run(master.start())

    async def fill() -> None:
        fill_cluster(master)

    run(fill())
    try:
        yield master, loop
    finally:
        run(master.close(leave=True))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


def measure(act: Callable[[], httpx.Response], rounds: int = ROUNDS) -> float:
    """Milliseconds at the median, from the call to the last byte of its answer."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        answer = act()
        times.append((time.perf_counter() - began) * 1000)
        assert answer.is_success, answer.text
    return median(times)


def calls(master: Master) -> Iterator[Case]:
    """Submissions and overviews."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=master.url, headers=headers, trust_env=False, timeout=60) as client:

        def get(path: str) -> Callable[[], httpx.Response]:
            return lambda: client.get(path)

        large = f"{WORKERS:,} workers, {SLOTS:,} slots"
        yield case("an answer at all", "ms", measure(get("/healthz")))
        yield case(f"overview, {large}", "ms", measure(get("/v1/overview")))
        yield case(f"resources, {large}", "ms", measure(get("/v1/resources")))
        yield case(f"all workers with all slots, {large}", "ms", measure(get("/v1/taskmanagers")))
        yield case(
            f"100 jobs of {JOBS:,}, newest first", "ms", measure(get("/v1/jobs/overview?limit=100&order=-start"))
        )
        yield case(f"all {JOBS:,} jobs", "ms", measure(get("/v1/jobs/overview")))
        numbers = iter(range(JOBS, JOBS + ROUNDS))

        def submit() -> httpx.Response:
            body = msgspec.json.encode(spec(next(numbers)))
            return client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})

        yield case(f"submission answered, {JOBS:,} jobs in the store", "ms", measure(submit))


async def _watch(port: int, change: Callable[[int], None]) -> tuple[float, float]:
    """Milliseconds at the median from a change to the last of all watchers that was told, and to the first."""
    streams = []
    for _ in range(WATCHERS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        writer.write(f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        await reader.readuntil(b"id: ")
        streams.append((reader, writer))
    last, first = [], []

    async def told(reader: asyncio.StreamReader, word: bytes) -> float:
        await reader.readuntil(word)
        return time.perf_counter()

    for number in range(CHANGES):
        word = f"job:change-{number}-".encode()
        waiting = [asyncio.ensure_future(told(reader, word)) for reader, _ in streams]
        began = time.perf_counter()
        change(number)
        ends = await asyncio.wait_for(asyncio.gather(*waiting), 60)
        last.append((max(ends) - began) * 1000)
        first.append((min(ends) - began) * 1000)
    for _, writer in streams:
        writer.close()
    return median(last), median(first)


def watchers(master: Master, loop: asyncio.AbstractEventLoop) -> Iterator[Case]:
    """All watchers of the event stream, while jobs change."""
    process = psutil.Process()

    def change(number: int) -> None:
        loop.call_soon_threadsafe(master.changes.note, [f"job:change-{number}-"])

    before = process.memory_info().rss
    last, first = asyncio.run(_watch(master.port, change))
    held = (process.memory_info().rss - before) / MIB
    yield case(f"from a change to the last of {WATCHERS} watchers (200 ms of it are the pause)", "ms", last)
    yield case(f"from the first of {WATCHERS} watchers to the last", "ms", last - first)
    yield case(f"memory of {WATCHERS} watchers, both ends", "MiB", held)


def main() -> None:
    """Measure, print, and compare with the bounds when asked to."""
    given = arguments(__doc__ or "").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "store"
        fill_store(directory)
        with running(directory) as (master, loop):
            found = [*calls(master), *watchers(master, loop)]
    show(found, given.json)
    sys.exit(check("service", found) if given.check else 0)


if __name__ == "__main__":
    main()
