"""A scenario as plain data: the cluster, the workload, the network and the faults, all drawn from one seed.

Being data, a scenario can be shrunk: :func:`slotwise.simulation.shrink.reduced` leaves parts of it out. Times
are virtual seconds from the start."""

from __future__ import annotations

import random

import msgspec

from slotwise.dispatcher.warm_applications import WarmApplicationPolicy
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.model.job import DriverSize, ExecutorBounds, ExecutorSize, JobSpec
from slotwise.model.job_graph import Dataset, DatasetKind, Flow, JobGraph
from slotwise.model.pipeline import PipelineOptions
from slotwise.model.resources import GIB, MIB, ResourceProfile
from slotwise.model.restart import RestartKind, RestartStrategy
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape, check_stability
from slotwise.simulation.faults import LONGEST_PAUSE_S, Fault, draw_faults

VERSION = "simulated"
FAULTS_S = 600.0


class WorkerTimes(msgspec.Struct, frozen=True):
    """The times of the workers' TaskExecutors; ``orphan_timeout_s``: how long slot processes outlive theirs."""

    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    slot_timeout_s: float
    job_master_timeout_s: float
    job_takeover_s: float
    registration_timeout_s: float
    orphan_timeout_s: float


class NetworkPlan(msgspec.Struct, frozen=True):
    """What befalls every message while faults last. ``spike`` is the chance of a delay of up to ``spike_s``.
    ``stray``: the chance that a message of a replaced leader reaches a worker that has moved on. ``ping_timeout_s``:
    when a stream notices that nothing comes through. ``notice_s``: how long workers take to learn of a new master.
    """

    latency_s: float
    jitter_s: float
    loss: float
    duplicate: float
    spike: float
    spike_s: float
    stray: float
    ping_timeout_s: float
    notice_s: float


class ProvisionerPlan(msgspec.Struct, frozen=True):
    """How long a worker takes to start, and how long its end takes to be seen."""

    start_s: float
    exit_notice_s: float


class HostPlan(msgspec.Struct, frozen=True):
    """A host of a standalone cluster, whose worker comes up at ``joins_at_s``."""

    name: str
    total: ResourceProfile
    default_profile: ResourceProfile
    joins_at_s: float


class ProgramPlan(msgspec.Struct, frozen=True):
    """What one driver of a job does: is ready after ``boot_s``, wants other totals of executors at the times in
    ``scales`` (seconds after it was ready, count), and ends with ``exit_code`` after ``work_s`` with an executor."""

    boot_s: float
    work_s: float
    exit_code: int
    scales: tuple[tuple[float, int], ...] = ()


class PipelinePlan(msgspec.Struct, frozen=True):
    """The project of a pipeline job: its graph, how long a region runs with executors, and how often one fails."""

    graph: JobGraph
    region_s: float
    failures: dict[str, int]


class JobPlan(msgspec.Struct, frozen=True):
    """A job, when it is submitted and cancelled, and what its drivers do: the first, the second, …; the last entry
    holds for all further ones. ``scales``: when somebody changes how many executors it may have, and to what. With a
    ``pipeline`` its drivers end when that is done.
    """

    name: str
    spec: JobSpec
    submit_at_s: float
    programs: tuple[ProgramPlan, ...]
    cancel_at_s: float | None = None
    scales: tuple[tuple[float, ExecutorBounds], ...] = ()
    pipeline: PipelinePlan | None = None


class Scenario(msgspec.Struct, frozen=True):
    """Everything of a run but the dice of its network and processes, which come from ``seed`` too."""

    seed: int
    rm: ResourceManagerConfig
    jm: JobMasterConfig
    times: WorkerTimes
    network: NetworkPlan
    provisioner: ProvisionerPlan
    hosts: tuple[HostPlan, ...]
    jobs: tuple[JobPlan, ...]
    faults: tuple[Fault, ...]
    faults_s: float = FAULTS_S
    left_out: tuple[str, ...] = ()
    warm: WarmApplicationPolicy = WarmApplicationPolicy()

    @property
    def quiet_s(self) -> float:
        """After so long without faults nothing of them can linger: every time-out that they set off is over."""
        return (
            2 * self.rm.heartbeat_timeout_s
            + self.times.job_master_timeout_s
            + self.times.job_takeover_s
            + self.times.slot_timeout_s
            + self.jm.release_timeout_s
            + self.jm.driver_fence_s
            + self.jm.idle_slot_timeout_s
            + self.jm.cool_down_s
            + self.jm.decommission_timeout_s
            + self.times.orphan_timeout_s
            + self.rm.worker_start_timeout_s
            + 60.0
        )


_MEMORY = (4 * GIB, 8 * GIB, 16 * GIB, 24 * GIB)


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(f"{seed}/scenario")
    size = min(20, max(1, int(rng.expovariate(1 / 5)) + 1)) if rng.random() < 0.93 else rng.randint(12, 20)
    jobs = min(10, max(1, int(rng.expovariate(1 / 3)) + 1)) if rng.random() < 0.93 else rng.randint(6, 10)
    provisioned = rng.random() < 0.55
    interval = rng.choice((2.0, 3.0, 5.0, 8.0)) * (1.0 if size < 8 else 2.0)
    timeout = interval * rng.choice((3.0, 4.0, 5.0))
    times = WorkerTimes(
        heartbeat_interval_s=interval,
        heartbeat_timeout_s=timeout,
        slot_timeout_s=rng.choice((5.0, 10.0)),
        job_master_timeout_s=timeout,
        job_takeover_s=rng.choice((5.0, 10.0, 15.0)),
        registration_timeout_s=rng.choice((60.0, 300.0)),
        orphan_timeout_s=0.0 if provisioned and rng.random() < 0.5 else rng.choice((5.0, 15.0)),
    )
    sizing, hosts = _draw_cluster(rng, size, provisioned)
    rm = ResourceManagerConfig(
        sizing=sizing,
        placement=rng.choice(("pack", "spread")),
        version=VERSION,
        heartbeat_interval_s=interval,
        heartbeat_timeout_s=timeout,
        check_delay_s=rng.choice((0.01, 0.05, 0.5)),
        start_up_grace_s=rng.choice((0.0, 0.0, 5.0)),
        allocation_retry_s=rng.choice((1.0, 2.0, 5.0)),
        disconnect_grace_s=rng.choice((0.1, 0.5, 3.0)),
        worker_start_timeout_s=rng.choice((20.0, 60.0)),
    )
    jm = JobMasterConfig(
        heartbeat_interval_s=interval,
        heartbeat_timeout_s=timeout,
        retry_s=rng.choice((2.0, 4.0)),
        resource_wait_timeout_s=rng.choice((-1.0, 60.0, 300.0)),
        stabilisation_s=rng.choice((0.5, 2.0, 10.0)),
        idle_slot_timeout_s=rng.choice((1.0, 10.0, 50.0)),
        release_timeout_s=rng.choice((10.0, 30.0)),
        cool_down_s=rng.choice((0.0, 5.0, 30.0)),
        decommission_timeout_s=rng.choice((5.0, 30.0)),
        restart=_draw_strategy(rng) or RestartStrategy(),
    )
    network = NetworkPlan(
        latency_s=rng.choice((0.0005, 0.005, 0.05)),
        jitter_s=rng.choice((0.001, 0.02, 0.5)),
        loss=rng.choice((0.0, 0.0, 0.01, 0.05, 0.15)),
        duplicate=rng.choice((0.0, 0.02, 0.1)),
        spike=rng.choice((0.0, 0.01, 0.05)),
        spike_s=rng.choice((1.0, 5.0, 20.0)),
        stray=rng.choice((0.0, 0.5, 1.0)),
        ping_timeout_s=rng.choice((3.0, 10.0, 40.0)),
        notice_s=rng.choice((0.2, 3.0, 15.0)),
    )
    # More than all that can keep a driver alive that its JobMaster has lost sight of: the worker's own time-outs, a
    # restart of the worker process meanwhile, a pause, the last message on its way, and the time that it takes to end.
    fence_s = times.job_master_timeout_s + times.job_takeover_s + times.orphan_timeout_s + network.spike_s
    jm = msgspec.structs.replace(jm, driver_fence_s=fence_s + LONGEST_PAUSE_S + 15.0)
    provisioner = ProvisionerPlan(start_s=rng.choice((0.5, 3.0, 12.0)), exit_notice_s=rng.choice((0.05, 1.0)))
    # Dice of their own, so that a seed's other jobs are what they were before there were pipelines.
    pipelines = random.Random(f"{seed}/pipelines")
    job_plans = tuple(_perhaps_pipeline(pipelines, _draw_job(rng, number)) for number in range(1, jobs + 1))
    names = tuple(host.name for host in hosts)
    faults = draw_faults(rng, names, tuple(plan.name for plan in job_plans), provisioned, FAULTS_S)
    warm, job_plans = _perhaps_warm(random.Random(f"{seed}/warm"), job_plans)
    return Scenario(seed, rm, jm, times, network, provisioner, hosts, job_plans, faults, warm=warm)


def _perhaps_warm(rng: random.Random, plans: tuple[JobPlan, ...]) -> tuple[WarmApplicationPolicy, tuple[JobPlan, ...]]:
    """One cluster in four keeps warm applications; there most jobs are alike, or none would ever use one."""
    alike = [plan for plan in plans if plan.pipeline is None]
    if rng.random() >= 0.25 or not alike:
        return WarmApplicationPolicy(), plans
    first = alike[0].spec
    specs = {
        plan.name: msgspec.structs.replace(first, name=plan.spec.name, program=plan.spec.program)
        for plan in alike
        if rng.random() < 0.8
    }
    policy = WarmApplicationPolicy(rng.choice((1, 1, 2)), rng.choice((0.5, 3.0)), rng.choice((20.0, 60.0)))
    return policy, tuple(msgspec.structs.replace(plan, spec=specs.get(plan.name, plan.spec)) for plan in plans)


def _draw_cluster(rng: random.Random, size: int, provisioned: bool) -> tuple[Sizing, tuple[HostPlan, ...]]:
    if not provisioned:
        hosts = []
        for number in range(1, size + 1):
            total = ResourceProfile(rng.choice((2000, 4000, 8000)), rng.choice(_MEMORY))
            default = ResourceProfile(total.cpu_milli // 2, total.memory_bytes // 2)
            joins = 0.0 if rng.random() < 0.7 else rng.uniform(0, 120)
            hosts.append(HostPlan(f"w{number}", total, default, joins))
        return Sizing(idle_timeout_s=30.0), tuple(hosts)
    total = ResourceProfile(rng.choice((4000, 8000)), rng.choice(_MEMORY[1:]))
    shape = WorkerShape(total, ResourceProfile(total.cpu_milli // 4, total.memory_bytes // 4))
    least = rng.choice((0, 0, 1, 2))
    redundant = rng.choice((0, 0, 0, 1))
    size = max(size, least + redundant)
    sizing = Sizing(
        worker=shape,
        max_workers=size if rng.random() < 0.7 else None,
        max_total=total * size,
        min_total=total * least if least else None,
        redundant_workers=redundant,
        idle_timeout_s=rng.choice((5.0, 15.0, 30.0)),
    )
    check_stability(sizing)
    return sizing, ()


def _draw_strategy(rng: random.Random) -> RestartStrategy | None:
    if rng.random() < 0.5:
        return None
    kind = rng.choice(list(RestartKind))
    delay_s = rng.choice((0.0, 1.0, 10.0))
    return RestartStrategy(
        kind, rng.choice((-1, 1, 3, 10)), delay_s, max(20.0, delay_s), 1.5, rng.choice((30.0, 3600.0))
    )


def _draw_job(rng: random.Random, number: int) -> JobPlan:
    executor = ExecutorSize(rng.choice((1, 1, 2)), rng.choice((1, 2)) * GIB, 384 * MIB)
    initial = rng.choice((0, 1, 1, 2, 3, 4, 6))
    most = rng.choice((None, initial + rng.randint(0, 4)))
    dynamic = rng.random() < 0.5
    programs = []
    for _ in range(rng.choice((1, 1, 2))):
        scales = []
        for _ in range(rng.randint(1, 5) if dynamic else 0):
            scales.append((round(rng.uniform(0, 150), 1), rng.randint(0, 8)))
        work = rng.choice((rng.uniform(1, 20), rng.uniform(20, 120), rng.uniform(100, 500)))
        code = 0 if rng.random() < 0.8 else rng.choice((1, 137, -9))
        programs.append(ProgramPlan(round(rng.uniform(0.2, 4), 2), round(work, 1), code, tuple(sorted(scales))))
    submit = 0.0 if rng.random() < 0.2 else round(rng.uniform(0, 400), 1)
    spec = JobSpec(
        name=f"j{number}",
        program=f"/j{number}.py",
        driver=DriverSize(1, GIB, 384 * MIB),
        executor=executor,
        min_executors=rng.randint(0, initial),
        initial_executors=initial,
        max_executors=most,
        dynamic_allocation=dynamic,
    )
    spec = msgspec.structs.replace(spec, restart=_draw_strategy(rng))
    cancel = round(submit + rng.uniform(0, 150), 1) if rng.random() < 0.25 else None
    bounds = []
    for _ in range(rng.choice((0, 0, 0, 1, 2, 4))):
        least = rng.choice((0, 0, 1, 2))
        at = round(submit + rng.uniform(0, 200), 1)
        bounds.append((at, ExecutorBounds(least, least + rng.choice((1, 2, 4, 7)))))
    scales_at = tuple(sorted(bounds, key=lambda scale: scale[0]))
    return JobPlan(f"j{number}", spec, submit, tuple(programs), cancel, scales_at)


_REGION_SIZES = (("1", "1g"), ("1", "2g"), ("2", "4g"))


def _perhaps_pipeline(rng: random.Random, plan: JobPlan) -> JobPlan:
    """One job in four is a pipeline of up to six datasets, each of which reads some of those before it."""
    if rng.random() >= 0.25:
        return plan
    names = [f"d{number}" for number in range(1, rng.randint(1, 6) + 1)]
    flows = []
    for place, name in enumerate(names):
        reads = tuple(rng.sample(names[:place], rng.randint(0, min(2, place))))
        cores, memory = rng.choice(_REGION_SIZES)
        conf = {"spark.executor.cores": cores, "spark.executor.memory": memory}
        if rng.random() < 0.5:
            conf["slotwise.parallelism.max"] = str(rng.randint(1, 4))
        flows.append(Flow(name, name, reads, conf))
    datasets = tuple(Dataset(name, DatasetKind.MATERIALIZED_VIEW) for name in names)
    graph = JobGraph(name=plan.name, catalog="c", database="d", datasets=datasets, flows=tuple(flows))
    failures = {name: rng.choice((0, 0, 0, 1, 3)) for name in names}
    spec = msgspec.structs.replace(
        plan.spec,
        pipeline=PipelineOptions(),
        min_executors=1,
        initial_executors=max(1, plan.spec.initial_executors),
        max_executors=None,
        dynamic_allocation=False,
    )
    region_s = round(rng.choice((rng.uniform(0.1, 5), rng.uniform(5, 60))), 1)
    return msgspec.structs.replace(plan, spec=spec, pipeline=PipelinePlan(graph, region_s, failures))
