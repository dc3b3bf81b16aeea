"""A master's metrics: counters and histograms that its events feed, and gauges that are read from its components when
somebody asks.

Nothing here changes what it looks at, and nothing that it does can fail a component."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector

from slotwise import __version__
from slotwise.dispatcher.machine import Dispatcher
from slotwise.jobmaster.machine import JobMaster
from slotwise.metrics.latency import AllocationLatency
from slotwise.metrics.names import METRICS, MOST_SERIES
from slotwise.model.ids import JobId
from slotwise.model.job import UNLIMITED_EXECUTORS, JobState
from slotwise.model.resources import ZERO, ResourceProfile
from slotwise.model.warm import WarmUnits
from slotwise.protocol.effects import Event
from slotwise.protocol.messages import ShortageReason
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.runtime.clock import monotonic

log = structlog.get_logger(__name__)

_WORKER_EVENTS = ("requested", "registered", "refused", "failed", "lost", "released", "cancelled")
_RECORDS = ("job", "cancel", "bounds", "progress", "result")
_FINAL = tuple(state.value for state in JobState if state.is_final)


class Components(Protocol):
    """The machines whose state is read."""

    @property
    def job_masters(self) -> Mapping[JobId, JobMaster]:
        """The JobMasters of jobs that have not been released."""
        ...

    @property
    def dispatcher(self) -> Dispatcher:
        """The Dispatcher."""
        ...

    @property
    def resource_manager(self) -> ResourceManager:
        """The ResourceManager."""
        ...


class Surroundings(Protocol):
    """What else is read of the process around them; the machines know nothing of it."""

    def gauges(self) -> Iterable[tuple[str, tuple[str, ...], float]]:
        """(metric, values of its labels, value): gauges, and counters that are kept elsewhere."""
        ...


class _Registry(CollectorRegistry):
    """Without the time of each series' making, which doubles their number and which nobody asks for."""

    def collect(self) -> Iterator[Family]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class MasterMetrics:
    """Counts from :meth:`happened` on; :meth:`exposition` is what is scraped. ``time`` is the clock that heartbeats are
    stamped with; ``most_series`` the most jobs, and workers, that have series of their own.
    """

    def __init__(
        self,
        components: Components,
        surroundings: Surroundings | None = None,
        time: Callable[[], float] = monotonic,
        most_series: int = MOST_SERIES,
    ) -> None:
        self.registry = _Registry(auto_describe=False)
        self._components = components
        self._surroundings = surroundings
        self._time = time
        self._most_series = most_series
        self._counters = {name: self._counter(name) for name in METRICS if _is_counted(name)}
        self._histograms = {name: self._histogram(name) for name, metric in METRICS.items() if metric.buckets}
        self._latency = AllocationLatency(self._histograms["slotwise_allocation_latency_seconds"].observe)
        # Known from the start: a rate over a series that appears with its first count misses that count.
        for name, values in (
            ("slotwise_worker_events_total", _WORKER_EVENTS),
            ("slotwise_submissions_total", ("accepted", "refused")),
            ("slotwise_jobs_ended_total", _FINAL),
            ("slotwise_executors_ended_total", ("asked", "unasked")),
            ("slotwise_rescales_total", ("completed", "superseded")),
        ):
            for value in values:
                self._counters[name].labels(value)
        self.registry.register(_State(self))
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str) -> Counter:
        metric = METRICS[name]
        return Counter(name, metric.meaning, metric.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        metric = METRICS[name]
        return Histogram(name, metric.meaning, metric.labels, buckets=metric.buckets, registry=self.registry)

    def exposition(self, accept: str | None) -> tuple[bytes, str]:
        """The text that a scraper gets, and its media type, of the kinds that it accepts."""
        encode, media_type = choose_encoder(accept or "")
        return encode(self.registry), media_type

    # ------------------------------------------------------------------------------------------- what happens

    def checked(self, seconds: float) -> None:
        """The ResourceManager has done a check."""
        self._histograms["slotwise_resource_check_duration_seconds"].observe(seconds)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request has got its answer. ``route`` must be one of a fixed number of patterns."""
        name = "slotwise_http_request_duration_seconds"
        self._histograms[name].labels(method, route, str(status)).observe(seconds)

    def refused(self) -> None:
        """A submission was refused."""
        self._count("slotwise_submissions_total", "refused")

    def happened(self, events: Iterable[Event]) -> None:
        """Take in what the components have just said; they must be in the state that this led to."""
        try:
            self._take_in(events)
        except Exception:
            # A figure that is wrong must not take down what it is about.
            log.exception("an event was not counted")

    def _take_in(self, events: Iterable[Event]) -> None:
        changed: dict[JobId, None] = {}
        for event in events:
            name, fields = event.name, event.fields
            if name.startswith("worker-") and name[7:] in _WORKER_EVENTS:
                self._count("slotwise_worker_events_total", name[7:])
            elif name == "submitted":
                self._count("slotwise_submissions_total", "accepted")
            elif name == "check-failed":
                self._count("slotwise_resource_check_failures_total")
            elif name == "job-master-failed":
                self._count("slotwise_job_master_failures_total")
            elif name == "executor-ended":
                self._count("slotwise_executors_ended_total", "asked" if fields["asked"] else "unasked")
            elif name == "rescaled":
                self._rescaled(str(fields["state"]).lower(), fields["seconds"])
            elif name == "job-state":
                self._moved(event, str(fields["state"]))
            if event.job is not None and name in ("declared", "acquired", "released", "slot-lost"):
                changed[event.job] = None
                self._slot_changed(event.job, event)
            elif event.job is not None and name == "job-gone":
                self._latency.forget(event.job)
        for job in changed:
            if (master := self._waits(job)) is not None:
                self._latency.missing(job, master.pool.missing(), self._time())

    def _count(self, name: str, *labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc()

    def _rescaled(self, outcome: str, seconds: str | int | float | None) -> None:
        self._count("slotwise_rescales_total", outcome)
        if outcome == "completed" and isinstance(seconds, int | float):
            self._histograms["slotwise_rescale_duration_seconds"].observe(seconds)

    def _moved(self, event: Event, state: str) -> None:
        if state == JobState.RESTARTING.value:
            self._count("slotwise_job_restarts_total")
        elif state in _FINAL:
            self._count("slotwise_jobs_ended_total", state)
            if event.job is not None:
                self._latency.forget(event.job)

    def _slot_changed(self, job: JobId, event: Event) -> None:
        if event.name == "slot-lost":
            self._count("slotwise_slots_lost_total")
        elif event.name == "acquired" and (master := self._waits(job)) is not None:
            slot = master.pool.slots.get(event.allocation) if event.allocation is not None else None
            if slot is not None:
                self._latency.acquired(job, slot.profile, self._time())

    def _waits(self, job: JobId) -> JobMaster | None:
        """The JobMaster of a job whose missing slots are waited for. One that takes every slot there is waits for none
        in particular.
        """
        master = self._components.job_masters.get(job)
        if master is None or master.state.is_final or master.rescaling.bounds.most == UNLIMITED_EXECUTORS:
            return None
        return master

    # ------------------------------------------------------------------------------------------- what there is

    def state(self) -> Iterator[Family]:
        """Everything that is read at the moment of a scrape."""
        values: dict[str, list[tuple[tuple[str, ...], float]]] = {
            name: [] for name, metric in METRICS.items() if not metric.buckets and name not in self._counters
        }
        surrounding = () if self._surroundings is None else self._surroundings.gauges()
        for name, labels, value in (*self._cluster(), *self._workers(), *self._jobs(), *surrounding):
            values[name].append((labels, value))
        for name, rows in values.items():
            metric = METRICS[name]
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(name, metric.meaning, labels=metric.labels)
            for labels, value in rows:
                family.add_metric(labels, value)
            yield family

    def _cluster(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        manager = self._components.resource_manager
        workers, pending = manager.slots.workers, manager.slots.pending
        total, free = _sum(entry.total for entry in workers.values()), _sum(entry.free for entry in workers.values())
        sums = {
            "total": total,
            "used": total - free,
            "free": free,
            "pending": _sum(entry.total for entry in pending.values()),
        }
        for state, amount in sums.items():
            yield "slotwise_cpu_cores", (state,), amount.cpu_milli / 1000
            yield "slotwise_memory_bytes", (state,), amount.memory_bytes
        for resource in sorted({name for amount in sums.values() for name, _ in amount.extended}):
            for state, amount in sums.items():
                yield "slotwise_extended_resources", (resource, state), dict(amount.extended).get(resource, 0)
        slots = sum(len(entry.slots) for entry in workers.values())
        unconfirmed = sum(
            1 for entry in workers.values() for slot in entry.slots.values() if slot.pending_since is not None
        )
        yield "slotwise_slots", ("confirmed",), slots - unconfirmed
        yield "slotwise_slots", ("pending",), unconfirmed
        lacking = manager.slots.ledger.lacking()
        missing = Tally(dict.fromkeys(ShortageReason, 0))
        for job, _ in lacking:
            for shortage in manager.shortages(job):
                missing[shortage.reason] += shortage.count
        for reason, count in missing.items():
            yield "slotwise_slots_missing", (reason.name,), count
        accounts = manager.slots.ledger.in_order()
        yield "slotwise_slots_required", (), sum(sum(account.required.values()) for account in accounts)
        yield "slotwise_slots_acquired", (), sum(sum(account.held.values()) for account in accounts)
        yield "slotwise_jobs_lacking", (), len(lacking)
        yield "slotwise_build_info", (__version__,), 1

    def _workers(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        manager, now = self._components.resource_manager, self._time()
        workers = manager.slots.workers.values()
        states = Tally(dict.fromkeys(("busy", "idle", "blocked", "leaving"), 0))
        oldest = 0.0
        for entry in workers:
            plain = "busy" if entry.slots else "idle"
            states["leaving" if entry.leaving else "blocked" if entry.blocked else plain] += 1
            oldest = max(oldest, now - entry.last_heard)
        for state, count in states.items():
            yield "slotwise_workers", (state,), count
        yield "slotwise_workers_pending", (), len(manager.slots.pending)
        yield "slotwise_worker_heartbeat_age_max_seconds", (), oldest
        yield from _warm([entry.warm for entry in workers if entry.warm is not None])
        for entry, _ in zip(workers, range(self._most_series), strict=False):
            yield "slotwise_worker_heartbeat_age_seconds", (entry.worker,), max(0.0, now - entry.last_heard)
            yield "slotwise_worker_resident_memory_bytes", (entry.worker,), entry.rss_bytes
            yield "slotwise_worker_slots", (entry.worker,), len(entry.slots)
        yield "slotwise_series_left_out", ("worker",), max(0, len(workers) - self._most_series)

    def _jobs(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        records, masters = self._components.dispatcher.jobs, self._components.job_masters
        states = Tally(dict.fromkeys(JobState, 0))
        for record in records.values():
            states[record.state] += 1
        for state, count in states.items():
            yield "slotwise_jobs", (state.value,), count
        applications = self._components.dispatcher.warm
        for outcome, count in applications.outcomes.items():
            yield "slotwise_warm_application_outcomes_total", (outcome,), count
        warm = [entry.waits for entry in applications.entries.values()]
        yield "slotwise_warm_applications", ("waiting",), sum(warm)
        yield "slotwise_warm_applications", ("starting",), len(warm) - sum(warm)
        living = [job for job, record in records.items() if not record.state.is_final]
        for job in living[: self._most_series]:
            record, master = records[job], masters.get(job)
            yield "slotwise_job_info", (job, record.spec.name, record.state.value), 1
            if master is not None:
                yield from self._job(job, master)
        yield "slotwise_series_left_out", ("job",), max(0, len(living) - self._most_series)

    def _job(self, job: JobId, master: JobMaster) -> Iterator[tuple[str, tuple[str, ...], float]]:
        lacks = sum(item.count for item in master.shortages)
        for state, count in (
            ("required", sum(master.pool.required.values())),
            ("acquired", len(master.pool.slots)),
            ("missing", lacks),
        ):
            yield "slotwise_job_slots", (job, state), count
        live = master.executors.live.values()
        for state, count in (
            ("wanted", sum(total.count for total in master.executors.wanted(master.rescaling.most))),
            ("launched", len(live)),
            ("registered", sum(1 for executor in live if executor.registered)),
        ):
            yield "slotwise_job_executors", (job, state), count
        yield "slotwise_job_driver_starts", (job,), master.driver_starts
        report = master.executors.report
        if report is None:
            return
        labels = (job, report.app_id)
        yield "spark_application_completed_tasks_total", labels, report.tasks_done
        yield "spark_application_active_stages", labels, len(report.stages)
        tasks = {
            "waiting": sum(max(0, stage.tasks - stage.done - stage.running) for stage in report.stages),
            "running": sum(stage.running for stage in report.stages),
            "completed": sum(stage.done for stage in report.stages),
            "failed": sum(stage.failed for stage in report.stages),
        }
        for state, count in tasks.items():
            yield "spark_application_active_stage_tasks", (*labels, state), count


class _State:
    """The collector of what is read at a scrape."""

    def __init__(self, metrics: MasterMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        return self._metrics.state()


_KEPT_ELSEWHERE = frozenset(
    {
        "slotwise_store_errors_total",
        "slotwise_event_write_errors_total",
        "slotwise_log_write_errors_total",
        "slotwise_log_cut_bytes_total",
        "slotwise_uploads_received_bytes_total",
        "slotwise_warm_application_outcomes_total",
        "spark_application_completed_tasks_total",
    }
)


def store_errors(errors: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """The counter of records that could not be written, with a value for each kind there is."""
    for record in _RECORDS:
        yield "slotwise_store_errors_total", (record,), errors.get(record, 0)


def _is_counted(name: str) -> bool:
    return METRICS[name].kind == "counter" and name not in _KEPT_ELSEWHERE


def _sum(profiles: Iterable[ResourceProfile]) -> ResourceProfile:
    total = ZERO
    for profile in profiles:
        total += profile
    return total


def _warm(reports: list[WarmUnits]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    for kind in ("drivers", "executors", "warming"):
        yield "slotwise_warm_units", (kind,), sum(getattr(report, kind) for report in reports)
    yield "slotwise_warm_memory_bytes", (), sum(report.memory_bytes for report in reports)
    yield "slotwise_warm_age_max_seconds", (), max((report.oldest_s for report in reports), default=0.0)
    for outcome, name in (("hit", "hits"), ("miss", "misses"), ("failed", "failed")):
        yield "slotwise_warm_starts", (outcome,), sum(getattr(report, name) for report in reports)
