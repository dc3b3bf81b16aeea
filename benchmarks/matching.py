"""The check of the ResourceManager: time and workers used, beside Flink's slot matching and Ray's autoscaler.

All are measured in one run on one machine. Flink runs when `make flink-peer` has fetched it, Ray when it can be
imported; otherwise that column is empty. `--check` compares the figures with bounds.toml and exits with 1 when one is
broken."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import Case, arguments, case, check, median, show
from _sizes import DEFAULT, SIX, WORKER, Ids, Size, profile, sixty_four
from peers import flink_strategy, ray_scheduler
from peers.flink_strategy import Asked
from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.model.requirements import Counts
from slotwise.model.resources import MIB, fits
from slotwise.protocol.messages import SlotReport, SlotStatus
from slotwise.resourcemanager.matching import Need, Plan, Template, plan
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from slotwise.resourcemanager.slot_manager import SlotManager
from slotwise.resourcemanager.worker_index import PlacementMode, WorkerIndex

WARM_ROUNDS = 15
PEER_ROUNDS = 12

BESIDE_FLINK: list[Asked] = [
    Asked(100, 10, 1000 // 10 // 6, SIX),
    Asked(100, 10, 160, [None]),
    Asked(1000, 100, 160, [None]),
    Asked(1000, 100, 20, SIX),
    Asked(5000, 200, 40_000 // 200 // 6, SIX),
]
SPREAD = Asked(1000, 100, 20, SIX, spread=True)


def main() -> None:
    """Measure, print, and compare with the bounds when asked to."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--memory-of-a-full-manager", action="store_true", help="used by the script itself")
    given = parser.parse_args()
    if given.memory_of_a_full_manager:
        kept = full_manager(random.Random(1))
        print(psutil.Process().memory_info().rss, len(kept.workers))
        return
    cases = [*beside_flink(), *many_profiles(), *fragmented(), *increments(), *beside_ray(), memory()]
    show(cases, given.json, missing_peers())
    sys.exit(check("matching", cases) if given.check else 0)


def missing_peers() -> list[str]:
    """Why the peer's column is empty where it is."""
    notes = ["One change has no peer: Flink's strategy knows full checks only, and begins each from nothing."]
    if not flink_strategy.available():
        notes.append("Flink was not fetched: `make flink-peer` does it. Its column is empty in all full checks.")
    if not ray_scheduler.available():
        notes.append("Ray cannot be imported here: its column is empty from an empty cluster.")
    return notes


# ------------------------------------------------------------------------------------------------- full checks


def beside_flink() -> list[Case]:
    """The full check of clusters without any slot, with jobs that all ask at once."""
    peers = flink_strategy.measure(BESIDE_FLINK, WORKER, DEFAULT, PEER_ROUNDS)
    found = []
    for one, peer in zip(BESIDE_FLINK, peers, strict=True):
        time_s, made = full_check(index_of(one.workers), needs_of(one.jobs, one.each, one.sizes))
        slots = one.jobs * one.each * len(one.sizes)
        name = f"{one.workers:,} workers, {slots:,} slots, {one.jobs} jobs, {words(one.sizes)}"
        found.append(case(f"full check, {name}", "ms", time_s * 1e3, peer.time_s * 1e3 if peer else None))
        found.append(
            case(
                f"workers needed, {name}",
                "count",
                len({one.worker for one in made.assignments}) + made.new_workers,
                peer.used_workers + peer.new_workers if peer else None,
            )
        )
    spread_s, _ = full_check(index_of(SPREAD.workers, PlacementMode.SPREAD), needs_of(SPREAD.jobs, SPREAD.each, SIX))
    (peer,) = flink_strategy.measure([SPREAD], WORKER, DEFAULT, 6)
    name = "full check, spread, 1,000 workers, 12,000 slots, 100 jobs, 6 profiles"
    found.append(case(name, "ms", spread_s * 1e3, peer.time_s * 1e3 if peer else None))
    return found


def many_profiles() -> list[Case]:
    """10,000 workers, 100,000 slots, 64 profiles."""
    sizes = sixty_four()
    jobs, each = 100, 16
    (peer,) = flink_strategy.measure([Asked(10_000, jobs, each, sizes)], WORKER, DEFAULT, 4)
    time_s, made = full_check(index_of(10_000), needs_of(jobs, each, sizes))
    used = len({one.worker for one in made.assignments}) + made.new_workers
    name = f"10,000 workers, {jobs * each * len(sizes):,} slots, {jobs} jobs, 64 profiles"
    return [
        case(f"full check, {name}", "ms", time_s * 1e3, peer.time_s * 1e3 if peer else None),
        case(f"workers needed, {name}", "count", used, peer.used_workers + peer.new_workers if peer else None),
    ]


def fragmented() -> list[Case]:
    """Clusters after many arrivals and departures: hardly two workers are alike."""
    found = []
    for workers, jobs, each in ((1000, 100, 20), (10_000, 100, 20)):
        drawn = random.Random(workers)
        index = WorkerIndex()
        total = profile(WORKER)
        sizes = [profile(size) for size in sixty_four()]
        used: list[Size] = []
        for position in range(workers):
            free = total
            for _ in range(drawn.randrange(30)):
                size = drawn.choice(sizes)
                free = free - size if fits(size, free) else free
            index.add(WorkerId(f"w{position}"), position, total, free, profile(DEFAULT))
            used.append((total.cpu_milli - free.cpu_milli, (total.memory_bytes - free.memory_bytes) // MIB))
        classes = sum(1 for _ in index.classes())
        time_s, made = full_check(index, needs_of(jobs, each, SIX))
        name = f"{workers:,} workers in {classes:,} classes, {jobs * each * 6:,} slots, {jobs} jobs"
        (peer,) = flink_strategy.measure([Asked(workers, jobs, each, SIX, used)], WORKER, DEFAULT, 6)
        found.append(case(f"full check, fragmented, {name}", "ms", time_s * 1e3, peer.time_s * 1e3 if peer else None))
        placed = sum(one.count for one in made.assignments)
        found.append(
            case(
                f"slots placed on what was free (more is better), {name}", "count", placed, peer.slots if peer else None
            )
        )
        asked = made.new_workers
        found.append(case(f"workers asked for beyond it, {name}", "count", asked, peer.new_workers if peer else None))
    return found


def full_check(index: WorkerIndex, needs: list[Need]) -> tuple[float, Plan]:
    """The warm time of a plan, and the plan."""
    template = Template(profile(WORKER), profile(DEFAULT), 1_000_000)
    pending = WorkerIndex()
    times = []
    for _ in range(WARM_ROUNDS):
        began = time.perf_counter()
        made = plan(needs, index, pending, template)
        times.append(time.perf_counter() - began)
    return median(times[WARM_ROUNDS // 2 :]), made


# ------------------------------------------------------------------------------------------------- one change


def full_manager(drawn: random.Random) -> SlotManager:
    """A slot manager with 10,000 workers and 100,000 slots of 64 profiles, held by 200 jobs, nothing missing."""
    total, default = profile(WORKER), profile(DEFAULT)
    sizes = [profile(size) for size in sixty_four()]
    manager = SlotManager(Ids(), Sizing(WorkerShape(total, default)))
    jobs = [JobId(f"job-{number:04d}") for number in range(200)]
    held: dict[JobId, Counts] = {job: {} for job in jobs}
    made = 0
    for number in range(10_000):
        free = total
        slots: list[SlotStatus] = []
        for _ in range(40):
            size = drawn.choice(sizes)
            if len(slots) < 10 and fits(size, free):
                free -= size
                job = drawn.choice(jobs)
                held[job][size] = held[job].get(size, 0) + 1
                slots.append(SlotStatus(AllocationId(f"old-{made:013d}"), job, size))
                made += 1
        worker = WorkerId(f"worker-{number:06d}")
        manager.register(worker, f"host-{number}", 1, total, default, SlotReport(1, tuple(slots), free), 0.0)
    for job in jobs:
        manager.ledger.declare(job, 1, held[job])
    manager.check(0.0)
    return manager


def increments() -> list[Case]:
    """One change and the whole check that follows it, on a cluster of 10,000 workers and some 100,000 slots."""
    manager = full_manager(random.Random(1))
    sizes = [profile(size) for size in SIX]
    slots = sum(len(entry.slots) for entry in manager.workers.values())
    classes = sum(1 for _ in manager.index.classes())
    name = f"10,000 workers in {classes:,} classes, {round(slots, -3):,} slots"
    job = JobId("job-0100")
    version = 1

    def declare() -> None:
        nonlocal version
        version += 1
        wanted: Counts = {}
        entry = manager.ledger.get(job)
        assert entry is not None
        for size, count in entry.held.items():
            wanted[size] = count
        for size in sizes:
            wanted[size] = wanted.get(size, 0) + 1
        manager.ledger.declare(job, version, wanted)

    def arrive() -> None:
        nonlocal version
        version += 1
        worker = WorkerId(f"late-{version}")
        manager.register(worker, "host", 1, profile(WORKER), profile(DEFAULT), SlotReport(1, (), profile(WORKER)), 1.0)

    victims = iter(list(manager.workers.values())[::7])

    def release() -> None:
        worker = next(victim for victim in victims if victim.slots)
        kept = [SlotStatus(key, slot.job, slot.profile) for key, slot in worker.slots.items()][1:]
        manager.report(worker.worker, SlotReport(worker.report_seq + 1, tuple(kept), worker.free), 1.0)

    found = [
        case(f"one job's change and its check, {name}", "ms", change(manager, declare)),
        case(f"one worker's arrival and its check, {name}", "ms", change(manager, arrive)),
        case(f"one slot's release and its check, {name}", "ms", change(manager, release)),
    ]
    # Now more is wanted than the cluster may ever have.
    manager.sizing = Sizing(manager.sizing.worker, max_workers=len(manager.workers))
    for number in range(300):
        manager.ledger.declare(JobId(f"new-{number:04d}"), 1, dict.fromkeys(sizes, 60))
    manager.check(1.0)
    waiting = len(manager.ledger.lacking())
    full = f"full cluster, {waiting} jobs waiting"
    job = JobId("new-0299")
    found += [
        case(f"one job's change and its check, {full}", "ms", change(manager, declare)),
        case(f"one worker's arrival and its check, {full}", "ms", change(manager, arrive)),
        case(f"one slot's release and its check, {full}", "ms", change(manager, release)),
    ]
    manager.check_invariants()
    return found


def change(manager: SlotManager, make: Callable[[], None]) -> float:
    """Milliseconds of processor time of a change and the check after it, the median of fifty: a millisecond is too
    short to be told apart from waiting for a processor that other work shares.
    """
    gc.collect()
    times = []
    for _ in range(50):
        began = time.process_time()
        make()
        manager.check(1.0)
        times.append(time.process_time() - began)
    return median(times) * 1e3


# ------------------------------------------------------------------------------------------------- the rest


def beside_ray() -> list[Case]:
    """12,000 slots of six sizes from an empty cluster."""
    peer = ray_scheduler.schedule(SIX, 2000, WORKER)
    time_s, made = full_check(WorkerIndex(), needs_of(1, 2000, SIX))
    return [
        case("12,000 slots from an empty cluster", "ms", time_s * 1e3, peer[0] * 1e3 if peer else None),
        case(
            "workers needed, 12,000 slots from an empty cluster", "count", made.new_workers, peer[1] if peer else None
        ),
    ]


def memory() -> Case:
    """A fresh process that holds a slot manager with 10,000 workers and 100,000 slots, the interpreter included."""
    argv = [sys.executable, __file__, "--memory-of-a-full-manager"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return case("memory of the process, 10,000 workers, 100,000 slots", "MiB", int(done.stdout.split()[0]) / MIB)


def index_of(workers: int, mode: PlacementMode = PlacementMode.PACK) -> WorkerIndex:
    """Empty workers."""
    index = WorkerIndex(mode)
    total, default = profile(WORKER), profile(DEFAULT)
    for position in range(workers):
        index.add(WorkerId(f"worker-{position:06d}"), position, total, total, default)
    return index


def needs_of(jobs: int, each: int, sizes: Sequence[Size | None]) -> list[Need]:
    """Jobs that all want ``each`` slots of every size; None is the unknown profile."""
    counts: Counts = {None if size is None else profile(size): each for size in sizes}
    return [Need(JobId(f"job-{number:04d}"), dict(counts)) for number in range(jobs)]


def words(sizes: Sequence[Size | None]) -> str:
    """How a row names its profiles."""
    return "unknown profile" if None in sizes else f"{len(sizes)} profiles"


if __name__ == "__main__":
    main()
