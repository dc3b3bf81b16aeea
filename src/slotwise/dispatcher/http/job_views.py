"""What REST clients see of a job: values made from its record, its JobMaster and its events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slotwise.dispatcher.http import job_shapes as shapes
from slotwise.dispatcher.http.graphs import plan, vertices
from slotwise.dispatcher.http.views import profile, requirement, shortage
from slotwise.dispatcher.machine import JobRecord
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.job import UNLIMITED_EXECUTORS, JobState
from slotwise.model.process import StageProgress
from slotwise.model.requirements import requirements_of
from slotwise.runtime.events import Happened, JobTimes

# Flink's JobStatus has no names for these two phases; `phase` beside it has ours.
_FLINK_STATE = {JobState.WAITING_FOR_RESOURCES: "CREATED", JobState.DEPLOYING: "INITIALIZING"}
FLINK_STATES = (
    *("INITIALIZING", "CREATED", "RUNNING", "FAILING", "FAILED", "CANCELLING", "CANCELED", "FINISHED", "RESTARTING"),
    *("SUSPENDED", "RECONCILING"),
)
STATES = (*FLINK_STATES, *(state.value for state in _FLINK_STATE))
ORDERS = tuple(f"{sign}{key}" for key in ("start", "end", "duration", "name", "state") for sign in ("", "-"))
_APPLICATION_STATUS = {JobState.FINISHED: "SUCCEEDED", JobState.FAILED: "FAILED", JobState.CANCELED: "CANCELED"}
# Spark's own pattern (spark.redaction.regex), and what clouds call theirs.
_SECRET = re.compile(r"secret|password|passwd|token|access[._-]?key|credential|private[._-]?key", re.IGNORECASE)
HIDDEN = "*********(redacted)"


def redacted(values: Mapping[str, str]) -> dict[str, str]:
    """The values but for those that are secret by their names."""
    return {key: HIDDEN if _SECRET.search(key) else value for key, value in values.items()}


def state_of(record: JobRecord, master: JobMaster | None) -> JobState:
    """The job's state. An end counts once it is recorded; until then the Dispatcher has not heard of it."""
    if master is None or record.state.is_final or master.state.is_final:
        return record.state
    return master.state


def flink_state(state: JobState) -> str:
    """A state in Flink's words."""
    return _FLINK_STATE.get(state, state.value)


def job_summary(record: JobRecord, master: JobMaster | None, times: JobTimes) -> shapes.JobSummary:
    """Flink's JobDetails, and what the job has beside."""
    return shapes.JobSummary(**_summary(record, master, times))  # type: ignore[arg-type]


def job_details(
    record: JobRecord, master: JobMaster | None, times: JobTimes, events: Sequence[Happened], now_unix_s: float
) -> shapes.JobDetails:
    """GET /v1/jobs/:jobid."""
    summary = _summary(record, master, times)
    parts = vertices(events) if record.spec.pipeline is not None else [_application(record, summary)]
    return shapes.JobDetails(
        **summary,  # type: ignore[arg-type]
        application_id=_application_id(master, events),
        now=int(now_unix_s * 1000),
        timestamps=_timestamps(events),
        vertices=parts,
        status_counts=dict(Counter(part.status for part in parts)),
        plan=plan(record, events).plan,
    )


def _summary(record: JobRecord, master: JobMaster | None, times: JobTimes) -> dict[str, object]:
    start, ended, last = times.start_unix_s, times.end_unix_s, times.last_unix_s
    until = ended if ended is not None else last
    state, result = state_of(record, master), record.result
    summary: dict[str, object] = {
        "jid": record.job,
        "name": record.spec.name,
        "state": flink_state(state),
        "phase": state.value,
        "start_time": int(start * 1000),
        "end_time": int(ended * 1000) if ended is not None else -1,
        "duration": int((until - start) * 1000),
        "last_modification": int(last * 1000),
        "tasks": shapes.TaskCounts(),
        "released": record.released,
        "min_executors": record.bounds.least,
        "max_executors": None if record.bounds.most == UNLIMITED_EXECUTORS else record.bounds.most,
        "program": record.spec.program,
        "exit_code": result.exit_code if result is not None else None,
        "reason": result.reason if result is not None else "",
        "log_tail": list(result.log_tail) if result is not None else [],
    }
    if master is not None:
        summary |= _running(master)
    return summary


def _running(master: JobMaster) -> dict[str, object]:
    report = master.executors.report
    stages = report.stages if report is not None else ()
    done = report.tasks_done if report is not None else 0
    live = master.executors.live
    return {
        "declared": [requirement(one) for one in requirements_of(master.pool.required)],
        "held": [
            shapes.HeldSlotInfo(slot.allocation, slot.worker, profile(slot.profile), slot.use)
            for slot in master.pool.slots.values()
        ],
        "missing": [shortage(item) for item in master.shortages],
        "driver_starts": master.driver_starts,
        "restarts": master.driver.progress.restart_count,
        "latest_restarts": [
            shapes.RestartInfo(restart.attempt, restart.reason) for restart in master.driver.progress.restarts
        ],
        "executors": shapes.ExecutorCounts(
            wanted=sum(total.count for total in master.executors.wanted(master.rescaling.most)),
            launched=len(live),
            registered=sum(1 for executor in live.values() if executor.registered),
            launched_in_all=master.executors.next_id - 1,
        ),
        "app_id": report.app_id if report is not None else None,
        "spark_ui": report.ui_url if report is not None else None,
        "tasks_done": done,
        "stages": [
            shapes.StageInfo(stage.stage_id, stage.name, stage.tasks, stage.done, stage.running, stage.failed)
            for stage in stages
        ],
        "tasks": _tasks(done, stages),
    }


def _tasks(done: int, stages: Iterable[StageProgress]) -> shapes.TaskCounts:
    """Spark's tasks: those that are done, and the rest of the active stages."""
    running = waiting = failed = 0
    for stage in stages:
        running += stage.running
        failed += stage.failed
        waiting += max(0, stage.tasks - stage.done - stage.running)
    return shapes.TaskCounts(
        total=done + running + waiting, created=waiting, running=running, finished=done, failed=failed
    )


# Flink's ExecutionState of the one vertex of an application, where it is not the job's own word.
_VERTEX_STATE = {"CANCELLING": "CANCELING", "FAILING": "RUNNING", "RESTARTING": "SCHEDULED", "SUSPENDED": "CREATED"}


def _application(record: JobRecord, summary: Mapping[str, object]) -> shapes.Vertex:
    state, executors = str(summary["state"]), summary.get("executors")
    parallelism = executors.registered if isinstance(executors, shapes.ExecutorCounts) else 0
    tasks = summary["tasks"]
    assert isinstance(tasks, shapes.TaskCounts)
    return shapes.Vertex(
        id=shapes.APPLICATION,
        name=record.spec.name,
        parallelism=parallelism,
        status=_VERTEX_STATE.get(state, state),
        start_time=int(str(summary["start_time"])),
        end_time=int(str(summary["end_time"])),
        duration=int(str(summary["duration"])),
        attempt=int(str(summary.get("driver_starts", 0))),
        reason=str(summary["reason"]),
        maxParallelism=-1 if record.bounds.most is None else record.bounds.most,
        tasks=tasks,
    )


def _application_id(master: JobMaster | None, events: Sequence[Happened]) -> str | None:
    """Spark's application id: of the driver that runs, else the last that there was."""
    if master is not None and master.executors.report is not None:
        return master.executors.report.app_id
    named = (event.fields["app_id"] for event in reversed(events) if event.name == "application")
    found = next(named, None)
    return None if found is None else str(found)


def _timestamps(events: Iterable[Happened]) -> dict[str, int]:
    found = dict.fromkeys(FLINK_STATES, 0)
    for event in events:
        if event.name == "submitted":
            found["CREATED"] = int(event.unix_s * 1000)
        elif event.name == "job-state":
            state = str(event.fields["state"])
            if state in JobState.__members__:
                found[flink_state(JobState(state))] = int(event.unix_s * 1000)
    return found


# ----------------------------------------------------------------------------------------------- how it ended


def failures(record: JobRecord, events: Sequence[Happened], most: int) -> shapes.Failures:
    """GET /v1/jobs/:jobid/exceptions: why the job failed or was restarted, and what it lost, newest first. What was
    lost stands with the failure that came of it.
    """
    found: list[shapes.RootFailure] = []
    lost: list[shapes.FailureInfo] = []
    for event in events:
        if event.name == "slot-lost":
            lost.append(_failure("SlotLost", str(event.fields["reason"]), event))
        elif event.name == "executor-ended" and not event.fields["asked"]:
            text = f"executor {event.fields['executor']} ended with code {event.fields['exit_code']}"
            lost.append(_failure("ExecutorEnded", text, event))
        elif event.name == "job-master-failed":
            found.append(_root("JobMasterFailed", str(event.fields["reason"]), event, []))
        elif event.name == "region" and event.fields.get("reason") and event.fields["state"] in ("FAILED", "SCHEDULED"):
            found.append(_root("RegionFailed", str(event.fields["reason"]), event, [], str(event.fields["region"])))
        elif event.name == "job-state" and event.fields["state"] in ("RESTARTING", "RECONCILING", "FAILED"):
            names = {"RESTARTING": "JobRestarted", "RECONCILING": "DriverOutOfSight", "FAILED": "JobFailed"}
            name, text = names[str(event.fields["state"])], str(event.fields.get("reason", ""))
            if name == "JobFailed" and record.result is not None:
                text = "\n".join([text, *record.result.log_tail])
            found.append(_root(name, text, event, lost))
            lost = []
    found += [_root(one.exceptionName, one.stacktrace, None, [], one=one) for one in lost]
    found.sort(key=lambda one: one.timestamp, reverse=True)
    return shapes.Failures(shapes.FailureHistory(found[:most], truncated=len(found) > most))


def _failure(name: str, text: str, event: Happened, task: str = "") -> shapes.FailureInfo:
    return shapes.FailureInfo(name, text, int(event.unix_s * 1000), task, "", event.worker or "")


def _root(
    name: str,
    text: str,
    event: Happened | None,
    concurrent: list[shapes.FailureInfo],
    task: str = "",
    *,
    one: shapes.FailureInfo | None = None,
) -> shapes.RootFailure:
    if one is None:
        assert event is not None
        one = _failure(name, text, event, task)
    return shapes.RootFailure(**msgspec.structs.asdict(one), concurrentExceptions=concurrent)


def execution_result(record: JobRecord, times: JobTimes) -> shapes.ExecutionResultInfo:
    """GET /v1/jobs/:jobid/execution-result."""
    result = record.result
    if result is None:
        return shapes.ExecutionResultInfo(shapes.QueueStatus("IN_PROGRESS"))
    ended = times.end_unix_s if times.end_unix_s is not None else times.last_unix_s
    cause = None
    if result.state is not JobState.FINISHED:
        trace = "\n".join([result.reason, *result.log_tail])
        cause = shapes.FailureCause(class_=_APPLICATION_STATUS[result.state], stack_trace=trace)
    return shapes.ExecutionResultInfo(
        shapes.QueueStatus("COMPLETED"),
        shapes.ExecutionResult(
            id=record.job,
            application_status=_APPLICATION_STATUS[result.state],
            net_runtime=int((ended - times.start_unix_s) * 1000),
            accumulator_results={},
            failure_cause=cause,
            exit_code=result.exit_code,
        ),
    )


def job_config(record: JobRecord) -> shapes.JobConfig:
    """GET /v1/jobs/:jobid/config."""
    spec = record.spec
    strategy = spec.restart.kind.value if spec.restart is not None else "the cluster's, and none for the program"
    return shapes.JobConfig(
        jid=record.job,
        name=spec.name,
        execution_config=shapes.ExecutionConfig(
            restart_strategy=strategy,
            job_parallelism=spec.initial_executors,
            object_reuse_mode=False,
            user_config=redacted(spec.conf),
        ),
        program=spec.program,
        args=list(spec.args),
        env=redacted(spec.env),
    )
