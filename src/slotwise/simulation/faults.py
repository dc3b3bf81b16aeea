"""Faults as plain data, drawn from the seed: each seed has its own mixture of kinds (swarm testing).

What each kind does is in :mod:`slotwise.simulation.injector`."""

from __future__ import annotations

import enum
import random

import msgspec

# A process that is stopped for longer is as good as dead, and must be ended by whoever watches over it: no time-out can
# fence what does not run.
LONGEST_PAUSE_S = 15.0


class FaultKind(enum.Enum):
    """What can go wrong. ``target`` names a host (``w3``, or ``#n`` for the n-th living worker), a job, or a pair of
    components; ``amount`` is explained at each.
    """

    STORM = "storm"  # amount: the chance of loss; target: * or a host
    PARTITION = "partition"  # between the master and a host; detail: both, in (to the host) or out
    INTERNAL_PARTITION = "internal-partition"  # target: a pair such as rm>jm
    BREAK_STREAM = "break-stream"
    PAUSE_WORKER = "pause-worker"
    PAUSE_MASTER = "pause-master"
    CRASH_WORKER = "crash-worker"  # the worker process; what runs in its slots lives on
    CRASH_HOST = "crash-host"
    TERMINATE_WORKER = "terminate-worker"  # SIGTERM
    CRASH_MASTER = "crash-master"
    TORN_MASTER = "torn-master"  # crash-master between what a step persists and what it sends
    LOSE_LEADERSHIP = "lose-leadership"  # the old master talks on for ``amount`` seconds
    CRASH_RM = "crash-rm"  # amount: seconds that the old one talks on, as for the next two
    CRASH_JM = "crash-jm"
    CRASH_DISPATCHER = "crash-dispatcher"
    SLOW_PROVISIONER = "slow-provisioner"  # amount: times slower
    FAILING_PROVISIONER = "failing-provisioner"  # amount: the chance of failure
    START_FAILURES = "start-failures"  # processes do not start; amount: the chance
    KILL_DRIVER = "kill-driver"
    KILL_EXECUTOR = "kill-executor"
    BLOCK_WORKER = "block-worker"
    CLOCK_STEP = "clock-step"  # amount: seconds that the wall clock of a host jumps


class Fault(msgspec.Struct, frozen=True):
    """One fault, from ``at_s`` for ``for_s`` seconds (of virtual time)."""

    kind: FaultKind
    at_s: float
    for_s: float
    target: str = ""
    amount: float = 0.0
    detail: str = ""


_PAIRS = ("rm>jm", "jm>rm", "dispatcher>jm", "jm>dispatcher", "rm<>jm", "dispatcher<>jm")

# Combinations that FLIP-6 names, and others that hurt: (kinds, at the same moment or shortly after each other).
_COMBINATIONS = (
    (FaultKind.CRASH_RM, FaultKind.CRASH_JM),
    (FaultKind.CRASH_WORKER, FaultKind.CRASH_RM),
    (FaultKind.CRASH_HOST, FaultKind.CRASH_RM),
    (FaultKind.CRASH_HOST, FaultKind.CRASH_JM),
    (FaultKind.CRASH_WORKER, FaultKind.CRASH_MASTER),
    (FaultKind.CRASH_HOST, FaultKind.CRASH_MASTER),
    (FaultKind.PARTITION, FaultKind.CRASH_JM),
    (FaultKind.PARTITION, FaultKind.LOSE_LEADERSHIP),
    (FaultKind.CRASH_WORKER, FaultKind.CRASH_HOST),
    (FaultKind.CRASH_DISPATCHER, FaultKind.CRASH_JM),
    (FaultKind.KILL_DRIVER, FaultKind.CRASH_MASTER),
    (FaultKind.KILL_DRIVER, FaultKind.CRASH_JM),
)


def draw_faults(
    rng: random.Random, hosts: tuple[str, ...], jobs: tuple[str, ...], provisioned: bool, until_s: float
) -> tuple[Fault, ...]:
    """A mixture of faults, in the order of their times."""
    kinds = [kind for kind in FaultKind if rng.random() < 0.35]
    if not provisioned:
        kinds = [kind for kind in kinds if "provisioner" not in kind.value]
    faults: list[Fault] = []
    if kinds:
        for _ in range(min(40, int(rng.expovariate(1 / 10)) + 1)):
            faults.append(_draw_one(rng, rng.choice(kinds), round(rng.uniform(0, until_s), 2), hosts, jobs))
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        at = rng.uniform(5, until_s)
        for kind in rng.choice(_COMBINATIONS):
            when = round(at + (rng.uniform(0, 5) if rng.random() < 0.5 else 0.0), 2)
            faults.append(_draw_one(rng, kind, min(when, until_s), hosts, jobs))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw_one(rng: random.Random, kind: FaultKind, at_s: float, hosts: tuple[str, ...], jobs: tuple[str, ...]) -> Fault:
    short = round(rng.choice((rng.uniform(0.05, 2), rng.uniform(1, 15), rng.uniform(10, 90))), 2)
    host = rng.choice(hosts) if hosts and rng.random() < 0.5 else f"#{rng.randint(0, 19)}"
    job = rng.choice(jobs)
    chance = round(rng.uniform(0.2, 1.0), 2)
    talks_on = 0.0 if rng.random() < 0.5 else round(rng.uniform(0.1, 40), 1)
    match kind:
        case FaultKind.STORM:
            return Fault(kind, at_s, short, rng.choice(("*", host)), chance)
        case FaultKind.PARTITION:
            return Fault(kind, at_s, short, host, detail=rng.choice(("both", "in", "out")))
        case FaultKind.INTERNAL_PARTITION:
            return Fault(kind, at_s, short, rng.choice(_PAIRS))
        case FaultKind.LOSE_LEADERSHIP:
            return Fault(kind, at_s, round(rng.uniform(0.05, 10), 2), amount=round(rng.uniform(1, 60), 1))
        case FaultKind.CRASH_MASTER | FaultKind.TORN_MASTER | FaultKind.PAUSE_MASTER:
            return Fault(kind, at_s, short)
        case FaultKind.PAUSE_WORKER:
            return Fault(kind, at_s, min(short, LONGEST_PAUSE_S), host)
        case FaultKind.CRASH_RM | FaultKind.CRASH_DISPATCHER:
            return Fault(kind, at_s, round(rng.choice((0.0, rng.uniform(0, 20))), 2), amount=talks_on)
        case FaultKind.CRASH_JM:
            return Fault(kind, at_s, round(rng.choice((0.0, rng.uniform(0, 20))), 2), job, talks_on)
        case FaultKind.SLOW_PROVISIONER:
            return Fault(kind, at_s, round(rng.uniform(10, 120), 1), amount=round(rng.uniform(2, 20), 1))
        case FaultKind.FAILING_PROVISIONER:
            return Fault(kind, at_s, round(rng.uniform(10, 120), 1), amount=chance)
        case FaultKind.START_FAILURES:
            return Fault(kind, at_s, short, host, chance)
        case FaultKind.KILL_DRIVER | FaultKind.KILL_EXECUTOR:
            return Fault(kind, at_s, 0.0, job)
        case FaultKind.CLOCK_STEP:
            return Fault(kind, at_s, 0.0, host, round(rng.uniform(-86400, 86400)))
        case _:
            return Fault(kind, at_s, short, host)
