"""Liveness: what must be so some time after the last fault.

:func:`unsettled` says what is not yet as it must be while jobs go on; :func:`unfinished` what is left over once all
jobs are to have ended. Both are empty for a cluster that has converged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slotwise.dispatcher.machine import Dispatcher
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.job import JobState
from slotwise.model.process import DriverProcess
from slotwise.model.resources import ZERO, ResourceProfile, fits
from slotwise.protocol.messages import ProcessPhase
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.simulation.checkers import active_slots
from slotwise.simulation.story import Violation
from slotwise.taskexecutor.machine import TaskExecutor

if TYPE_CHECKING:
    from slotwise.simulation.cluster import Cluster
    from slotwise.simulation.hosts import Host


def unsettled(cluster: Cluster) -> Iterator[Violation]:
    """What has not converged while jobs may still run."""
    rm = cluster.resource_manager()
    dispatcher = cluster.dispatcher()
    if rm is None or dispatcher is None:
        yield Violation("components-are-back", "there is no ResourceManager or no Dispatcher")
        return
    assert isinstance(rm.machine, ResourceManager)
    assert isinstance(dispatcher.machine, Dispatcher)
    yield from _workers(cluster, rm.machine)
    yield from _jobs(cluster, rm.machine, dispatcher.machine)
    yield from _sizes(cluster, rm.machine)
    for client in cluster.clients:
        if client.job is None and client.refused is None and client.plan.submit_at_s < cluster.engine.now - 30:
            yield Violation("clients-are-answered", f"the submission of {client.plan.name} has no answer")
        if client.cancel_wanted and client.job is not None and not client.cancel_done:
            yield Violation("clients-are-answered", f"the cancel of {client.job} has no answer", client.job)


def unfinished(cluster: Cluster) -> Iterator[Violation]:
    """What is left although every job was to end."""
    yield from unsettled(cluster)
    rm, dispatcher = cluster.resource_manager(), cluster.dispatcher()
    if rm is None or dispatcher is None:
        return
    for job in cluster.job_ids():
        result = cluster.store.jobs[job].result
        record = dispatcher.machine.jobs.get(job)
        if result is None:
            yield Violation("every-job-ends", f"{job} has no final state", job)
        elif record is None or record.state is not result.state:
            shown = "unknown" if record is None else record.state.value
            yield Violation("every-job-ends", f"{job} ended as {result.state.value} and is shown as {shown}", job)
        if cluster.job_master(job) is not None:
            yield Violation("nothing-leaked", f"the JobMaster of {job} is still there", job)
    for host in cluster.hosts.values():
        machine = host.actor.machine if host.actor is not None else None
        if machine is not None and machine.table.slots:
            slots = list(machine.table.slots)
            yield Violation("nothing-leaked", f"{host.name} still has {', '.join(slots)}", host.name, *slots)
        for process in host.slots.values():
            if process.alive:
                yield Violation("nothing-leaked", f"{process} still runs", host.name, process.job)
    for entry in rm.machine.slots.ledger.in_order():
        yield Violation("nothing-leaked", f"the ResourceManager still has an account of {entry.job}", entry.job, "rm")
    for job in rm.machine.jobs:
        yield Violation("nothing-leaked", f"the ResourceManager still knows {job}", job, "rm")
    now = cluster.engine.now + rm.process.offset_s
    sizing = rm.machine.config.sizing
    if sizing.worker is not None:
        for worker in rm.machine.slots.idle_workers(now - sizing.idle_timeout_s - 20.0):
            yield Violation("idle-workers-go", f"{worker} is idle and still there", worker)


# ----------------------------------------------------------------------------------------------- workers


def _workers(cluster: Cluster, rm: ResourceManager) -> Iterator[Violation]:
    """The RM's view is the workers' truth."""
    for host in cluster.hosts.values():
        machine = host.actor.machine if host.actor is not None else None
        if machine is None or not host.up:
            yield Violation("workers-are-back", f"the worker of {host.name} is down", host.name)
            continue
        if machine.stopping is not None:
            yield Violation("workers-are-back", f"{host.name} is stopping: {machine.stopping}", host.name)
            continue
        view = rm.slots.workers.get(host.name)
        if view is None:
            yield Violation("workers-are-known", f"{host.name} runs and is not registered", host.name)
            continue
        yield from _view_of(host, machine, view)
        for process in host.slots.values():
            if process.alive and process.allocation not in machine.table.slots:
                yield Violation("nothing-leaked", f"{process} runs in no slot", host.name, process.job)
    for worker in rm.slots.workers:
        if worker not in cluster.hosts:
            yield Violation("workers-are-known", f"{worker} is registered and does not exist", worker)


def _view_of(host: Host, machine: TaskExecutor, view: object) -> Iterator[Violation]:
    truth = {slot.allocation: (slot.job, slot.profile) for slot in machine.table.slots.values()}
    slots = view.slots  # type: ignore[attr-defined]
    seen = {allocation: (slot.job, slot.profile) for allocation, slot in slots.items()}
    if truth != seen or view.free != machine.table.available:  # type: ignore[attr-defined]
        differing = sorted(set(truth) ^ set(seen))
        text = f"the ResourceManager's view of {host.name} differs from the truth: {differing}"
        yield Violation("view-is-true", text, host.name, *differing)
    for allocation, slot in slots.items():
        if slot.pending_since is not None:
            yield Violation("view-is-true", f"{allocation} on {host.name} is pending", host.name, allocation)


def _sizes(cluster: Cluster, rm: ResourceManager) -> Iterator[Violation]:
    """The minimum is reached, the maximum kept, nothing is awaited that does not come."""
    sizing = rm.config.sizing
    if sizing.worker is None:
        return
    for worker in rm.slots.pending:
        yield Violation("workers-are-known", f"{worker} is awaited", worker)
    there = ZERO
    for host in cluster.hosts.values():
        there += host.total
    if sizing.min_total is not None and not fits(sizing.min_total, there):
        yield Violation("minimum", f"there is {there}, and at least {sizing.min_total} is wanted", "rm")
    count = len(cluster.hosts)
    if all(worker.slots for worker in rm.slots.workers.values()):
        # Workers that came back with their jobs' slots are not sent away, whatever was started in their place.
        return
    many = sizing.max_workers is not None and count > sizing.max_workers
    if many or (sizing.max_total is not None and not fits(there, sizing.max_total)):
        yield Violation("maximum", f"{count} workers with {there} run; at most {sizing.max_total}", "rm")


# ----------------------------------------------------------------------------------------------- jobs


def _jobs(cluster: Cluster, rm: ResourceManager, dispatcher: Dispatcher) -> Iterator[Violation]:
    for job in cluster.job_ids():
        record = dispatcher.jobs.get(job)
        if record is None:
            yield Violation("acknowledged-job-known", f"the Dispatcher does not know {job}", job)
            continue
        actor = cluster.job_master(job)
        if cluster.store.jobs[job].result is not None:
            continue
        if actor is None:
            yield Violation("components-are-back", f"{job} has no JobMaster", job)
            continue
        machine = actor.machine
        assert isinstance(machine, JobMaster)
        if machine.state.is_final or machine.state in (JobState.CANCELLING, JobState.FAILING, JobState.RESTARTING):
            yield Violation("states-are-passed", f"{job} stays {machine.state.value}", job)
            continue
        if record.state is not machine.state:
            text = f"{job} is {machine.state.value} and the Dispatcher shows {record.state.value}"
            yield Violation("states-are-passed", text, job)
        known = cluster.store.jobs[job]
        recorded = known.bounds or known.spec.bounds
        if not recorded == record.bounds == machine.rescaling.bounds:
            text = f"the bounds of {job}: recorded {recorded}, {record.bounds}, followed {machine.rescaling.bounds}"
            yield Violation("bounds-are-followed", text, job)
        elif machine.state is JobState.RUNNING and machine.rescaling.most != recorded.most:
            yield Violation("bounds-are-followed", f"{job} does not come to its bounds {recorded}", job)
        yield from _pool(cluster, machine)
        yield from _needs(cluster, rm, machine)
        yield from _processes(cluster, machine)


def _pool(cluster: Cluster, machine: JobMaster) -> Iterator[Violation]:
    """The job holds exactly the slots that the workers have for it."""
    job = machine.job
    held = {(slot.worker, slot.allocation) for slot in machine.pool.slots.values()}
    truth = set()
    for host in cluster.hosts.values():
        if host.actor is not None:
            table = host.actor.machine.table
            truth |= {(host.name, allocation) for allocation in active_slots(host.actor.machine, job)}
            for slot in table.of_job(job):
                if (host.name, slot.allocation) not in truth:
                    text = f"{slot.allocation} of {job} on {host.name} stays {slot.state.value}"
                    yield Violation("pool-is-true", text, job, slot.allocation, host.name)
    for worker, allocation in sorted(held ^ truth):
        text = f"{allocation} on {worker}: held by {job} or there for it, not both"
        yield Violation("pool-is-true", text, job, allocation, worker)


def _needs(cluster: Cluster, rm: ResourceManager, machine: JobMaster) -> Iterator[Violation]:
    """What the job declares is known, and met as far as there is room."""
    job = machine.job
    entry = rm.slots.ledger.get(job)
    required = {} if entry is None else entry.required
    if required != {profile: count for profile, count in machine.pool.required.items() if count}:
        yield Violation("declarations-arrive", f"the ResourceManager has other requirements of {job}", job, "rm")
        return
    for profile, count in machine.pool.missing().items():
        assert profile is not None
        where = _room_for(cluster, rm, profile)
        if where is not None:
            yield Violation("met-if-it-can-be", f"{job} lacks {count} × ({profile}), which fits {where}", job, "rm")
        elif not machine.shortages:
            yield Violation("told-what-is-missing", f"{job} lacks {count} × ({profile}) and was not told why", job)


def _room_for(cluster: Cluster, rm: ResourceManager, profile: ResourceProfile) -> str | None:
    for host in cluster.hosts.values():
        view = rm.slots.workers.get(host.name)
        usable = view is not None and not view.leaving and not view.blocked
        if usable and host.actor is not None and fits(profile, host.actor.machine.table.available):
            return f"into {host.name}"
    sizing = rm.config.sizing
    if sizing.worker is not None and fits(profile, sizing.worker.total):
        there = ZERO
        for host in cluster.hosts.values():
            there += host.total
        if sizing.more_workers(there, len(cluster.hosts)):
            return "a worker that may be started"
    return None


def _processes(cluster: Cluster, machine: JobMaster) -> Iterator[Violation]:
    """What the job thinks runs is what runs."""
    job = machine.job
    running = [p for host in cluster.hosts.values() for p in host.slots.values() if p.alive and p.job == job]
    drivers = [process for process in running if isinstance(process.spec, DriverProcess)]
    if machine.state in (JobState.DEPLOYING, JobState.RUNNING):
        if len(drivers) != 1:
            yield Violation("what-runs-is-known", f"{job} has {len(drivers)} drivers", job)
            return
        report = drivers[0].report
        if report is not None and (machine.executors.report is None or machine.executors.report != report):
            yield Violation("what-runs-is-known", f"the JobMaster of {job} does not know what its driver says", job)
    elif drivers:
        yield Violation("what-runs-is-known", f"{job} is {machine.state.value} and {drivers[0]} runs", job)
    executors = {process.allocation for process in running if process not in drivers}
    known = {executor.allocation for executor in machine.executors.live.values()}
    for allocation in sorted(executors ^ known):
        yield Violation("what-runs-is-known", f"the executor in {allocation} of {job}", job, allocation)
    if machine.state is JobState.RUNNING and machine.executors.active:
        for total in machine.executors.to_start(machine.rescaling.most):
            slot = machine.pool.unused(total.size.profile)
            if slot is not None and slot.confirmed:
                text = f"{job} wants {total.count} more executor(s) and leaves {slot.allocation} unused"
                yield Violation("met-if-it-can-be", text, job, slot.allocation)
    for slot in machine.pool.slots.values():
        status = slot.process
        if status is not None and status.phase is ProcessPhase.STOPPING:
            yield Violation("states-are-passed", f"{status.process} of {job} is being stopped", job, slot.allocation)
