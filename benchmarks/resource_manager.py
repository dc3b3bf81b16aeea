"""The whole ResourceManager, message in and messages out, on a large cluster: what one change costs.

10,000 workers, 100,000 slots of 64 profiles, 200 jobs. A change to one job or one worker must cost in proportion to the
change. `--check` compares the figures with bounds.toml and exits with 1 when one is broken."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import Case, arguments, case, check, median, show
from _sizes import DEFAULT, SIX, WORKER, Ids, profile, sixty_four
from slotwise.model.ids import (
    RESOURCE_MANAGER,
    UNKNOWN_TOKEN,
    Address,
    AllocationId,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.requirements import Counts, requirements_of
from slotwise.model.resources import MIB, fits
from slotwise.protocol.effects import Effects
from slotwise.protocol.messages import (
    BlockWorker,
    DeclareRequirements,
    Envelope,
    JobDone,
    Message,
    RegisterJobMaster,
    RegisterWorker,
    SlotReport,
    SlotStatus,
    WorkerLeaving,
    WorkerReport,
)
from slotwise.resourcemanager.config import ResourceManagerConfig
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.resourcemanager.sizing import Sizing, WorkerShape

TOKEN = LeaderToken(1)
ROUNDS = 50


class Cluster:
    """A ResourceManager that knows ``workers`` workers and ``jobs`` jobs, which hold about ten slots a worker and lack
    nothing. The reports are made up here: nobody answers what it sends.
    """

    def __init__(self, workers: int = 10_000, jobs: int = 200, sizing: Sizing | None = None) -> None:
        shape = WorkerShape(profile(WORKER), profile(DEFAULT))
        # Nobody is silent here, however many virtual seconds a case takes.
        config = ResourceManagerConfig(sizing=sizing or Sizing(shape), heartbeat_timeout_s=1e9)
        self.now = 1000.0
        self.rm = ResourceManager(config, TOKEN, Ids(), self.now)
        self.jobs = [JobId(f"job-{number:04d}") for number in range(jobs)]
        self.versions = dict.fromkeys(self.jobs, 0)
        for job in self.jobs:
            self.say(job_master_address(job), RegisterJobMaster(job))
        drawn = random.Random(1)
        sizes = [profile(size) for size in sixty_four()]
        made = 0
        for number in range(workers):
            free = profile(WORKER)
            slots: list[SlotStatus] = []
            for _ in range(50):
                size = drawn.choice(sizes)
                if len(slots) < 11 and fits(size, free):
                    free -= size
                    slots.append(SlotStatus(AllocationId(f"old-{made:013d}"), drawn.choice(self.jobs), size))
                    made += 1
            self.register(WorkerId(f"worker-{number:06d}"), SlotReport(1, tuple(slots), free))
        for job in self.jobs:
            self.declare(job, {})
        self.check()
        # Everything that was left over from building: no start-up work is measured.
        self.rm.on_timer(self.now + 0.5)

    def say(self, sender: Address, payload: Message) -> Effects:
        """A message to the ResourceManager."""
        token = LeaderToken(1) if sender.startswith("jm:") else UNKNOWN_TOKEN
        return self.rm.handle(Envelope(0, RESOURCE_MANAGER, TOKEN, sender, token, payload), self.now)

    def register(self, worker: WorkerId, report: SlotReport) -> None:
        """A worker of the usual size."""
        message = RegisterWorker(worker, "host", 1, "", profile(WORKER), profile(DEFAULT), report)
        self.say(worker_address(worker), message)

    def declare(self, job: JobId, more: Counts) -> None:
        """The job wants what it holds and ``more``."""
        entry = self.rm.slots.ledger.get(job)
        wanted: Counts = {}
        for held, count in entry.held.items() if entry is not None else ():
            wanted[held] = count
        for size, count in more.items():
            wanted[size] = wanted.get(size, 0) + count
        self.versions[job] += 1
        message = DeclareRequirements(job, self.versions[job], requirements_of(wanted))
        self.say(job_master_address(job), message)

    def report(self, worker: WorkerId, without: int = 0) -> None:
        """The worker's report: the slots that were given to it, all made, but for the first ``without``."""
        entry = self.rm.slots.workers[worker]
        found = [SlotStatus(key, slot.job, slot.profile) for key, slot in entry.slots.items()]
        free = entry.free
        for gone in found[:without]:
            free += gone.profile
        self.say(worker_address(worker), WorkerReport(SlotReport(entry.report_seq + 1, tuple(found[without:]), free)))

    def check(self) -> Effects:
        """The check timer, if a check is wanted."""
        self.now += 0.05
        return self.rm.on_timer(self.now)


def measure(action: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Milliseconds of processor time of ``action``, the median of fifty; ``before`` is done before each and not
    measured. Waiting for a processor that other work shares would hide so short a time.
    """
    gc.collect()
    times = []
    for _ in range(ROUNDS):
        before()
        began = time.process_time()
        action()
        times.append(time.process_time() - began)
    return median(times) * 1e3


def changes(cluster: Cluster, name: str) -> Iterator[Case]:
    """One change of each kind, with the check and the messages that follow."""
    rm, six = cluster.rm, [profile(size) for size in SIX]
    job = cluster.jobs[len(cluster.jobs) // 2]
    workers = list(rm.slots.workers)
    turn = iter(workers)

    def one_job() -> None:
        cluster.declare(job, dict.fromkeys(six, 1 + cluster.versions[job] % 2))
        cluster.check()

    def arrive() -> None:
        worker = WorkerId(f"late-{len(rm.slots.workers)}-{cluster.now}")
        cluster.register(worker, SlotReport(1, (), profile(WORKER)))
        cluster.check()

    def lose() -> None:
        cluster.say(worker_address(next(turn)), WorkerLeaving("maintenance"))
        cluster.check()

    def release() -> None:
        cluster.report(next(turn), without=1)
        cluster.check()

    def watch() -> None:
        rm.on_timer(cluster.now)

    def second() -> None:
        # The check, if one was wanted, is over before the watch is due.
        cluster.check()
        cluster.now += 1.0

    def quiet() -> None:
        # What was given out in earlier rounds is reported, so that nothing is late.
        for worker in list(rm.slots.workers):
            if any(slot.pending_since is not None for slot in rm.slots.workers[worker].slots.values()):
                cluster.report(worker)
        cluster.check()

    yield case(f"one job's declaration, check and messages, {name}", "ms", measure(one_job))
    yield case(f"one worker's heartbeat, {name}", "ms", measure(lambda: cluster.report(next(turn))))
    yield case(f"one slot's release, check and messages, {name}", "ms", measure(release))
    yield case(f"one worker's loss, check and messages, {name}", "ms", measure(lose))
    yield case(f"one worker's arrival, check and messages, {name}", "ms", measure(arrive))
    quiet()
    yield case(f"the watch with nothing due, {name}", "ms", measure(watch, second))


def cases() -> list[Case]:
    """All cases; the cluster is built once and lives through them."""
    cluster = Cluster()
    slots = sum(len(entry.slots) for entry in cluster.rm.slots.workers.values())
    name = f"{len(cluster.rm.slots.workers):,} workers, {round(slots, -3):,} slots, 64 profiles"
    found = list(changes(cluster, name))
    workers = list(cluster.rm.slots.workers)

    victims = iter(workers[5000::3])
    client = Address("client:1")
    blocked: list[WorkerId] = []

    def block() -> None:
        blocked.append(next(victims))
        cluster.say(client, BlockWorker(blocked[-1], True))
        cluster.check()

    found.append(case(f"one worker is blocked, check and messages, {name}", "ms", measure(block)))
    found += changes(cluster, f"{len(blocked)} workers blocked, {name}")
    job = cluster.jobs[3]
    found.append(case(f"explain one job, {name}", "ms", measure(lambda: cluster.rm.explain(job))))
    cluster.rm.check_invariants()

    shape = WorkerShape(profile(WORKER), profile(DEFAULT))
    sizing = Sizing(shape, min_total=profile(WORKER) * 100, redundant_workers=5, max_workers=10_020)
    cluster = Cluster(sizing=sizing)
    cluster.check()
    found += changes(cluster, f"minimum, maximum and redundancy, {name}")
    cluster.rm.check_invariants()

    sizing = Sizing(shape, max_workers=10_000)
    cluster = Cluster(sizing=sizing)
    for number in range(300):
        job = JobId(f"late-{number:04d}")
        cluster.versions[job] = 0
        cluster.jobs.append(job)
        cluster.say(job_master_address(job), RegisterJobMaster(job))
        cluster.declare(job, dict.fromkeys((profile(size) for size in SIX), 60))
    cluster.check()
    waiting = len(cluster.rm.slots.ledger.lacking())
    found += changes(cluster, f"full, {waiting} jobs waiting, {name}")
    cluster.rm.check_invariants()
    found.append(idle_workers())
    found.append(memory())
    return found


def idle_workers() -> Case:
    """A heartbeat while all of 10,000 workers are idle and the minimum needs them."""
    shape = WorkerShape(profile(WORKER), profile(DEFAULT))
    cluster = Cluster(0, 0, Sizing(shape, min_total=profile(WORKER) * 10_000, idle_timeout_s=10.0))
    for number in range(10_000):
        cluster.now += 0.001
        cluster.register(WorkerId(f"idle-{number:06d}"), SlotReport(1, (), profile(WORKER)))
    turn = iter(list(cluster.rm.slots.workers))

    def beat() -> None:
        cluster.report(next(turn))
        cluster.now += 0.25
        cluster.rm.on_timer(cluster.now)

    return case("one worker's heartbeat and timers, 10,000 idle workers of the minimum", "ms", measure(beat))


def memory() -> Case:
    """A fresh process that holds such a ResourceManager, the interpreter included."""
    argv = [sys.executable, __file__, "--memory"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return case("memory of a process with the ResourceManager", "MiB", int(done.stdout) / MIB)


def main() -> None:
    """Measure, print, and compare with the bounds when asked to."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--memory", action="store_true", help="used by the script itself")
    given = parser.parse_args()
    if given.memory:
        cluster = Cluster()
        print(psutil.Process().memory_info().rss)
        cluster.say(job_master_address(cluster.jobs[0]), JobDone(cluster.jobs[0]))
        return
    found = cases()
    show(found, given.json)
    sys.exit(check("resource_manager", found) if given.check else 0)


if __name__ == "__main__":
    main()
