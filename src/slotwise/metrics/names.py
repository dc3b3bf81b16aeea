"""Every metric there is, in one table: the code, ``docs/metrics.md`` and the dashboard are held to it.

Names follow Prometheus' rules: base units (seconds, bytes, cores), ``_total`` for counters, and no label whose values
are without bound. Jobs and workers are labels only while they are there, and never more than :data:`MOST_SERIES` of
each at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]

MOST_SERIES = 1000
"""So many jobs, and so many workers, have series of their own at a time; the oldest ones have them."""


@dataclass(frozen=True)
class Metric:
    """One family. ``group`` is its heading in the documentation; ``buckets`` are a histogram's upper bounds, in the
    metric's unit.
    """

    name: str
    kind: Kind
    group: str
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_MASTER, _RESOURCES, _WORKERS, _JOBS = "The master", "Slots and resources", "Workers", "Jobs"
_PER_JOB, _SPARK = "Each job that has not ended", "What Spark's drivers report"
_STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_WAIT_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
_HTTP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_RESCALE_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_ALL = (
    Metric("slotwise_build_info", "gauge", _MASTER, "Always 1; the version is the label.", ("version",)),
    Metric("slotwise_ready", "gauge", _MASTER, "1 while this master leads and serves, as /readyz says."),
    Metric("slotwise_leadership_epoch", "gauge", _MASTER, "Rises by one with every master that takes the lead."),
    Metric(
        "slotwise_mailbox_messages",
        "gauge",
        _MASTER,
        "Messages that wait for a component: dispatcher, resource-manager, job-master (all of them together).",
        ("component",),
    ),
    Metric(
        "slotwise_store_errors_total",
        "counter",
        _MASTER,
        "Records of jobs that could not be written, by their kind: job, cancel, bounds, progress, result.",
        ("record",),
    ),
    Metric(
        "slotwise_store_unwritten_results", "gauge", _MASTER, "Results of jobs that wait for the store to take them."
    ),
    Metric("slotwise_event_write_errors_total", "counter", _MASTER, "Events that are missing in a job's file."),
    Metric("slotwise_log_write_errors_total", "counter", _MASTER, "Pieces of jobs' output that could not be kept."),
    Metric(
        "slotwise_log_cut_bytes_total",
        "counter",
        _MASTER,
        "Output of jobs that was cut out, because a log or a job was over its limit.",
    ),
    Metric(
        "slotwise_http_request_duration_seconds",
        "histogram",
        _MASTER,
        "Time from a request to the beginning of its answer. Routes are patterns; `other` is what none of them is.",
        ("method", "route", "status"),
        _HTTP_S,
    ),
    Metric("slotwise_uploaded_files", "gauge", _MASTER, "Uploaded files that are kept."),
    Metric("slotwise_uploaded_bytes", "gauge", _MASTER, "Their size."),
    Metric("slotwise_uploads_received_bytes_total", "counter", _MASTER, "Bytes of uploads that were kept."),
    Metric("slotwise_event_stream_watchers", "gauge", _MASTER, "Readers of the stream of events."),
    Metric("slotwise_worker_streams", "gauge", _MASTER, "Workers that are connected now."),
    Metric(
        "slotwise_series_left_out",
        "gauge",
        _MASTER,
        f"Jobs and workers without series of their own, because there are more than {MOST_SERIES} of them.",
        ("kind",),
    ),
    Metric(
        "slotwise_slots",
        "gauge",
        _RESOURCES,
        "Slots that there are: confirmed by their workers, or pending (asked for).",
        ("state",),
    ),
    Metric("slotwise_slots_required", "gauge", _RESOURCES, "Slots that all jobs together have declared."),
    Metric("slotwise_slots_acquired", "gauge", _RESOURCES, "Slots that jobs have been given."),
    Metric(
        "slotwise_slots_missing",
        "gauge",
        _RESOURCES,
        "Declared slots that are not there, by the reason of `slotwise explain`.",
        ("reason",),
    ),
    Metric("slotwise_jobs_lacking", "gauge", _RESOURCES, "Jobs that lack at least one slot."),
    Metric(
        "slotwise_cpu_cores",
        "gauge",
        _RESOURCES,
        "Cores of all workers: total, used, free, and pending (of workers on their way).",
        ("state",),
    ),
    Metric("slotwise_memory_bytes", "gauge", _RESOURCES, "Likewise, memory.", ("state",)),
    Metric("slotwise_extended_resources", "gauge", _RESOURCES, "Likewise, resources by name.", ("resource", "state")),
    Metric(
        "slotwise_allocation_latency_seconds",
        "histogram",
        _RESOURCES,
        "Time from a slot's declaration (or the loss of the one before it) until its job holds it.",
        (),
        _WAIT_S,
    ),
    Metric(
        "slotwise_resource_check_duration_seconds",
        "histogram",
        _RESOURCES,
        "Time of a check: matching what is missing to what is free, and the notices that follow.",
        (),
        _STEP_S,
    ),
    Metric("slotwise_resource_check_failures_total", "counter", _RESOURCES, "Checks that failed: a bug; see the log."),
    Metric("slotwise_workers", "gauge", _WORKERS, "Registered workers: busy, idle, blocked or leaving.", ("state",)),
    Metric("slotwise_workers_pending", "gauge", _WORKERS, "Workers that were asked for and have not come."),
    Metric(
        "slotwise_worker_events_total",
        "counter",
        _WORKERS,
        "What became of workers: requested, registered, refused, failed (to start), lost, released, cancelled.",
        ("event",),
    ),
    Metric("slotwise_worker_heartbeat_age_max_seconds", "gauge", _WORKERS, "The longest silence of a worker."),
    Metric("slotwise_worker_heartbeat_age_seconds", "gauge", _WORKERS, "Time since a worker was heard.", ("worker",)),
    Metric(
        "slotwise_worker_resident_memory_bytes",
        "gauge",
        _WORKERS,
        "Memory of the worker's own process, without what runs in its slots; it comes with its heartbeats.",
        ("worker",),
    ),
    Metric("slotwise_worker_slots", "gauge", _WORKERS, "Slots on a worker.", ("worker",)),
    Metric("slotwise_warm_units", "gauge", _WORKERS, "What waits for drivers and executors to come.", ("kind",)),
    Metric("slotwise_warm_memory_bytes", "gauge", _WORKERS, "Memory of what waits."),
    Metric("slotwise_warm_age_max_seconds", "gauge", _WORKERS, "Age of what has waited longest."),
    Metric(
        "slotwise_warm_starts",
        "gauge",
        _WORKERS,
        "Processes of slots since their workers started, by whether one that waited could become them (hit, miss); "
        "failed: of those that were to wait, which never got ready. It falls when a worker goes.",
        ("outcome",),
    ),
    Metric(
        "slotwise_warm_applications",
        "gauge",
        _JOBS,
        "Applications that wait for a job of their kind, or are being made for one.",
        ("state",),
    ),
    Metric(
        "slotwise_warm_application_outcomes_total",
        "counter",
        _JOBS,
        "Submissions that were given a warm application (hit), or could have had one (miss); failed: applications that "
        "never got ready, see the log.",
        ("outcome",),
    ),
    Metric("slotwise_jobs", "gauge", _JOBS, "Jobs that the master knows, by state.", ("state",)),
    Metric("slotwise_submissions_total", "counter", _JOBS, "Submissions that were accepted or refused.", ("outcome",)),
    Metric("slotwise_jobs_ended_total", "counter", _JOBS, "Jobs that ended under this master.", ("state",)),
    Metric("slotwise_job_restarts_total", "counter", _JOBS, "Drivers that ended and were to be followed by another."),
    Metric("slotwise_job_master_failures_total", "counter", _JOBS, "JobMasters that failed: a bug; see the log."),
    Metric(
        "slotwise_slots_lost_total", "counter", _JOBS, "Slots that jobs held and lost with their worker or process."
    ),
    Metric(
        "slotwise_executors_ended_total",
        "counter",
        _JOBS,
        "Executors that ended: asked (the job gave them back) or unasked.",
        ("cause",),
    ),
    Metric(
        "slotwise_rescales_total",
        "counter",
        _JOBS,
        "Changes of a job's number of executors: completed, or superseded by another change.",
        ("outcome",),
    ),
    Metric(
        "slotwise_rescale_duration_seconds",
        "histogram",
        _JOBS,
        "Time of the completed ones, until every executor had joined or gone.",
        (),
        _RESCALE_S,
    ),
    Metric("slotwise_job_info", "gauge", _PER_JOB, "Always 1; name and state are labels.", ("job", "name", "state")),
    Metric("slotwise_job_slots", "gauge", _PER_JOB, "Slots that the job requires, holds and lacks.", ("job", "state")),
    Metric(
        "slotwise_job_executors",
        "gauge",
        _PER_JOB,
        "Executors that the job wants, has launched, and that have registered at its driver.",
        ("job", "state"),
    ),
    Metric("slotwise_job_driver_starts", "gauge", _PER_JOB, "Drivers of the job so far, this one included.", ("job",)),
    Metric(
        "spark_application_completed_tasks_total",
        "counter",
        _SPARK,
        "Tasks of the present application that ended well.",
        ("job", "application_id"),
    ),
    Metric("spark_application_active_stages", "gauge", _SPARK, "Stages that run or wait.", ("job", "application_id")),
    Metric(
        "spark_application_active_stage_tasks",
        "gauge",
        _SPARK,
        "Tasks of these stages: waiting, running, completed; `failed` counts attempts.",
        ("job", "application_id", "state"),
    ),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def samples_of(metric: Metric) -> tuple[str, ...]:
    """The names under which the values of a metric are asked for in PromQL."""
    if metric.kind == "histogram":
        return (f"{metric.name}_bucket", f"{metric.name}_count", f"{metric.name}_sum")
    return (metric.name,)
