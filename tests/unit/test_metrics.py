"""Metrics against scripted histories of the real machines in virtual time, read back with Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from slotwise.jobmaster.machine import JobMaster
from slotwise.metrics.latency import AllocationLatency
from slotwise.metrics.master import MasterMetrics, store_errors
from slotwise.metrics.names import METRICS
from slotwise.model.ids import Address, JobId, WorkerId
from slotwise.model.job import JobState
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.effects import Effects, Event
from slotwise.resourcemanager.machine import ResourceManager, ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from slotwise.simulation.world import VERSION, World
from tests.unit.worlds import DRIVER, EXECUTOR, WORKER, spec

Row = tuple[str, tuple[str, ...], float]


class Metered(World):
    """A world whose master's events are counted, as :class:`~slotwise.master.Master` has them counted."""

    def __init__(self, **given: object) -> None:
        self.metrics: MasterMetrics | None = None
        super().__init__(**given)  # type: ignore[arg-type]
        self.metrics = MasterMetrics(self, time=lambda: self.now)

    @property
    def job_masters(self) -> dict[JobId, JobMaster]:
        return {
            machine.job: machine
            for machine in self.machines.values()
            if isinstance(machine, JobMaster) and not machine.released
        }

    @property
    def resource_manager(self) -> ResourceManager:
        return self.rm

    def _carry_out(self, address: Address, effects: Effects) -> None:
        super()._carry_out(address, effects)
        if self.metrics is not None and not address.startswith("te:"):
            self.metrics.happened(effects.events)

    def read(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Every sample of the exposition, by its name and its labels' values in the order of their names."""
        assert self.metrics is not None
        text, media_type = self.metrics.exposition("text/plain")
        assert media_type.startswith("text/plain")
        found: dict[tuple[str, tuple[str, ...]], float] = {}
        for family in parse(text.decode()):
            for sample in family.samples:
                key = (sample.name, tuple(value for _, value in sorted(sample.labels.items())))
                assert key not in found, f"{key} is there twice"
                found[key] = sample.value
        return found

    def value(self, name: str, *labels: str) -> float:
        return self.read()[name, labels]


def metered(max_workers: int = 2) -> Metered:
    sizing = Sizing(WorkerShape(WORKER, ResourceProfile(2000, 4 * GIB)), max_workers=max_workers)
    return Metered(rm_config=ResourceManagerConfig(sizing=sizing, version=VERSION))


def names(rows: Iterable[tuple[str, tuple[str, ...]]]) -> set[str]:
    return {name for name, _ in rows}


def test_what_is_required_acquired_and_missing_is_told_by_reason() -> None:
    world = Metered()
    job = world.submit(spec())
    world.run(1)
    now = world.read()
    assert now["slotwise_slots_required", ()] == 3
    assert now["slotwise_slots_missing", ("NO_WORKERS",)] == 3
    assert now["slotwise_slots_missing", ("CLUSTER_FULL",)] == 0
    assert now["slotwise_jobs_lacking", ()] == 1
    assert now["slotwise_job_slots", (job, "missing")] == 3
    assert now["slotwise_jobs", ("WAITING_FOR_RESOURCES",)] == 1

    world.add_worker(WORKER)
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    world.run(10)
    now = world.read()
    assert now["slotwise_slots_acquired", ()] == 3
    assert sum(value for (name, _), value in now.items() if name == "slotwise_slots_missing") == 0
    assert now["slotwise_slots", ("confirmed",)] == 3
    used = DRIVER.profile + EXECUTOR.profile + EXECUTOR.profile
    assert now["slotwise_cpu_cores", ("used",)] == used.cpu_milli / 1000
    assert now["slotwise_memory_bytes", ("used",)] == used.memory_bytes
    assert now["slotwise_memory_bytes", ("free",)] == WORKER.memory_bytes - used.memory_bytes
    assert now["slotwise_memory_bytes", ("total",)] == WORKER.memory_bytes
    assert now["slotwise_job_executors", (job, "registered")] == 2
    assert now["slotwise_jobs", ("RUNNING",)] == 1
    assert now["slotwise_workers", ("busy",)] == 1


def test_other_resources_are_told_by_their_names() -> None:
    world = Metered()
    world.add_worker(ResourceProfile.of(4000, 8 * GIB, {"gpu": 2}))
    world.run(1)
    assert world.value("slotwise_extended_resources", "gpu", "total") == 2
    assert world.value("slotwise_extended_resources", "gpu", "used") == 0


def test_the_wait_for_slots_is_from_their_declaration_until_the_job_holds_them() -> None:
    world = Metered()
    job = world.submit(spec())
    declared = world.now
    world.after(40, lambda: void(world.add_worker(WORKER)))
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    held = [at for at, event in world.events if event.name == "acquired"]
    assert len(held) == 3
    now = world.read()
    assert now["slotwise_allocation_latency_seconds_count", ()] == 3
    waited = sum(at - declared for at in held)
    assert now["slotwise_allocation_latency_seconds_sum", ()] == pytest.approx(waited, abs=0.5)
    assert now["slotwise_allocation_latency_seconds_bucket", ("30.0",)] == 0
    assert now["slotwise_allocation_latency_seconds_bucket", ("60.0",)] == 3


def test_a_replacement_is_waited_for_from_the_loss_on() -> None:
    world = Metered()
    world.add_worker(WORKER, WorkerId("a"))
    job = world.submit(spec())
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    world.run(20)
    before = world.read()
    world.add_worker(WORKER, WorkerId("b"))
    driver = next(slot for slot in world.jm(job).pool.slots.values() if (slot.use or "").startswith("driver"))
    assert driver.worker == "a"
    world.kill_worker(WorkerId("a"))
    world.run_until(lambda: not world.jm(job).pool.on_worker(WorkerId("a")))
    world.run_until(lambda: world.state(job) is JobState.RUNNING and len(world.jm(job).pool.slots) == 3)
    now = world.read()
    assert now["slotwise_slots_lost_total", ()] == 3
    assert now["slotwise_worker_events_total", ("lost",)] == 1
    assert now["slotwise_job_restarts_total", ()] == 1
    count = "slotwise_allocation_latency_seconds_count"
    assert now[count, ()] > before[count, ()]
    assert now["slotwise_job_driver_starts", (job,)] == 2


def test_workers_are_told_by_state_and_so_is_what_became_of_them() -> None:
    world = metered()
    job = world.submit(spec(initial_executors=2))
    world.run(0.5)
    now = world.read()
    assert now["slotwise_workers_pending", ()] >= 1
    assert now["slotwise_cpu_cores", ("pending",)] == WORKER.cpu_milli / 1000 * now["slotwise_workers_pending", ()]
    assert now["slotwise_slots_missing", ("WORKERS_COMING",)] == 3
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    world.cancel(job)
    world.run_until(lambda: world.state(job).is_final)
    world.run(5)
    now = world.read()
    assert (now["slotwise_workers", ("idle",)], now["slotwise_workers", ("busy",)]) == (1, 0)
    world.run(120)
    now = world.read()
    assert sum(value for (name, _), value in now.items() if name == "slotwise_workers") == 0
    assert now["slotwise_worker_events_total", ("requested",)] == 1
    assert now["slotwise_worker_events_total", ("registered",)] == 1
    assert now["slotwise_worker_events_total", ("released",)] == 1
    assert now["slotwise_jobs_ended_total", ("CANCELED",)] == 1


def test_series_of_jobs_and_workers_go_with_them() -> None:
    world = Metered()
    worker = world.add_worker(WORKER)
    job = world.submit(spec(name='with "quotes" and a \\'))
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    world.run(5)
    now = world.read()
    assert now["slotwise_job_info", (job, 'with "quotes" and a \\', "RUNNING")] == 1
    assert [key for key in now if job in key[1] and key[0].startswith("spark_application_")]
    assert [key for key in now if worker in key[1]]
    world.cancel(job)
    world.run_until(lambda: world.state(job).is_final)
    world.kill_worker(worker)
    world.run(5)
    now = world.read()
    assert [key for key in now if job in key[1] or worker in key[1]] == []
    assert now["slotwise_jobs", ("CANCELED",)] == 1


def test_no_more_jobs_than_the_limit_have_series() -> None:
    world = Metered()
    world.metrics = MasterMetrics(world, time=lambda: world.now, most_series=4)
    jobs = [world.submit(spec()) for _ in range(7)]
    for _ in range(5):
        world.add_worker(WORKER)
    world.run(1)
    now = world.read()
    assert [key[1][0] for key in now if key[0] == "slotwise_job_info"] == jobs[:4]
    assert now["slotwise_series_left_out", ("job",)] == 3
    assert now["slotwise_series_left_out", ("worker",)] == 1
    assert now["slotwise_submissions_total", ("accepted",)] == 7
    assert now["slotwise_workers", ("busy",)] == 5


def test_a_silent_worker_shows_in_the_age_of_its_heartbeat() -> None:
    world = Metered()
    worker = world.add_worker(WORKER)
    world.run(30)
    assert world.value("slotwise_worker_heartbeat_age_seconds", worker) <= 10.1
    world.kill_worker(worker, noticed=False)
    world.run(20)
    assert world.value("slotwise_worker_heartbeat_age_seconds", worker) >= 20
    assert world.value("slotwise_worker_heartbeat_age_max_seconds") >= 20


def test_rescales_are_counted_with_how_they_ended_and_their_time() -> None:
    world = Metered()
    world.add_worker(ResourceProfile(16000, 64 * GIB))
    job = world.submit(spec(initial_executors=1, max_executors=4))
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    world.run(60)
    before = world.read()
    world.scale(job, 1, 3)
    world.run(60)
    now = world.read()
    assert now["slotwise_rescales_total", ("completed",)] >= before["slotwise_rescales_total", ("completed",)]
    completed = now["slotwise_rescales_total", ("completed",)]
    assert completed == len([e for e in world.named("rescaled") if e.fields["state"] == "COMPLETED"]) > 0
    assert now["slotwise_rescale_duration_seconds_count", ()] == completed


def test_every_metric_is_in_the_table_and_every_one_of_the_table_is_there() -> None:
    class Around:
        def gauges(self) -> Iterator[Row]:
            yield from store_errors({"job": 2})
            for name in METRICS:
                if name in AROUND:
                    yield name, ("rm",) if METRICS[name].labels else (), 1

    world = Metered()
    world.add_worker(ResourceProfile.of(4000, 8 * GIB, {"gpu": 1}))
    job = world.submit(spec())
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    world.run(5)
    metrics = MasterMetrics(world, Around(), time=lambda: world.now)
    metrics.answered("GET", "/v1/jobs", 200, 0.01)
    metrics.checked(0.001)
    text, _ = metrics.exposition(None)
    families = {family.name: family for family in parse(text.decode())}
    for name, metric in METRICS.items():
        family = families.pop(name.removesuffix("_total") if metric.kind == "counter" else name)
        assert family.type == metric.kind
        assert family.documentation == metric.meaning
        assert family.samples, name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), sample
    assert all(name.startswith("process_") for name in families)
    assert not [name for name in families if name.endswith("_created")]


AROUND = {
    "slotwise_ready",
    "slotwise_leadership_epoch",
    "slotwise_mailbox_messages",
    "slotwise_store_unwritten_results",
    "slotwise_event_write_errors_total",
    "slotwise_log_write_errors_total",
    "slotwise_log_cut_bytes_total",
    "slotwise_uploaded_files",
    "slotwise_uploaded_bytes",
    "slotwise_uploads_received_bytes_total",
    "slotwise_event_stream_watchers",
    "slotwise_worker_streams",
}


def test_a_scraper_that_knows_open_metrics_gets_them() -> None:
    world = Metered()
    assert world.metrics is not None
    text, media_type = world.metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert media_type.startswith("application/openmetrics-text")
    assert "slotwise_slots_required" in {family.name for family in parse_open(text.decode())}  # type: ignore[no-untyped-call]


def test_an_event_that_cannot_be_counted_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    world = Metered()
    assert world.metrics is not None
    world.metrics.happened([Event("rescaled", JobId("job-a"))])
    assert "was not counted" in "".join(capsys.readouterr())
    assert world.value("slotwise_rescales_total", "completed") == 0


def test_names_keep_prometheus_rules() -> None:
    for name, metric in METRICS.items():
        assert name.startswith(("slotwise_", "spark_application_"))
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert (metric.kind == "histogram") == bool(metric.buckets), name
        assert list(metric.buckets) == sorted(metric.buckets)
        assert not {"milliseconds", "ms", "mib", "mb", "percent"} & set(name.split("_")), name
        assert metric.meaning.endswith("."), name


SMALL, LARGE = ResourceProfile(1000, GIB), ResourceProfile(2000, 2 * GIB)


def test_of_several_wishes_the_oldest_is_met_first_and_the_newest_withdrawn_first() -> None:
    seen: list[float] = []
    latency = AllocationLatency(seen.append)
    latency.missing("a", {SMALL: 2}, 10.0)
    latency.missing("a", {SMALL: 3, LARGE: 1}, 20.0)
    latency.acquired("a", SMALL, 25.0)
    latency.missing("a", {SMALL: 1, LARGE: 1}, 26.0)
    latency.acquired("a", LARGE, 27.0)
    latency.acquired("a", SMALL, 30.0)
    assert seen == [15.0, 7.0, 20.0]
    latency.missing("a", {}, 31.0)
    latency.acquired("a", SMALL, 40.0)
    assert len(seen) == 3


def test_a_job_that_has_stated_no_sizes_waits_for_any() -> None:
    seen: list[float] = []
    latency = AllocationLatency(seen.append)
    latency.missing("a", {None: 1}, 10.0)
    latency.acquired("a", SMALL, 12.0)
    assert seen == [2.0]
    latency.missing("a", {None: 1}, 13.0)
    latency.forget("a")
    latency.acquired("a", SMALL, 14.0)
    assert len(seen) == 1


def void(_: object) -> None:
    """For actions whose result nobody needs."""
