"""A job's graph and what has become of its parts, in the shapes of Flink's REST API.

Both are made of the job's events, so that they are there after its end and under another master. A vertex of a pipeline
is a region; an application is one vertex: what Spark runs in it is not known before."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from slotwise.dispatcher.http.rescales import VERTEX
from slotwise.dispatcher.machine import JobRecord
from slotwise.runtime.events import Happened

_STARTED = "RUNNING"
_ENDED = ("FINISHED", "CANCELED", "FAILED")


def vertices(events: Iterable[Happened]) -> list[dict[str, Any]]:
    """Each region of a pipeline: its state, its parallelism, when it ran, how often it was tried, and why it failed.
    Times are Unix milliseconds, −1 where there is none.
    """
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.name == "job-graph":
            nodes = json.loads(str(event.fields["plan"]))["nodes"]
            found = {node["id"]: found.get(node["id"]) or _vertex(node) for node in nodes}
        elif event.name == "region" and event.fields["region"] in found:
            vertex = found[str(event.fields["region"])]
            state = str(event.fields["state"])
            vertex["status"] = state
            vertex["parallelism"] = event.fields["parallelism"] or vertex["parallelism"]
            vertex["attempt"] = event.fields["attempt"]
            vertex["reason"] = event.fields.get("reason", "")
            if state == _STARTED:
                vertex["start-time"], vertex["end-time"], vertex["duration"] = _millis(event), -1, -1
            elif state in _ENDED and vertex["start-time"] >= 0:
                vertex["end-time"] = _millis(event)
                vertex["duration"] = vertex["end-time"] - vertex["start-time"]
    return list(found.values())


def plan(record: JobRecord, events: Iterable[Happened]) -> dict[str, Any]:
    """GET /v1/jobs/:jobid/plan. A pipeline's is empty until its definitions are read."""
    kept = list(events)
    graph: dict[str, Any] = {"jid": record.job, "name": record.spec.name, "type": "BATCH", "nodes": []}
    if record.spec.pipeline is None:
        graph["nodes"] = [{"id": VERTEX, "parallelism": record.spec.initial_executors, "inputs": []}]
        return {"plan": graph}
    for event in kept:
        if event.name == "job-graph":
            graph = json.loads(str(event.fields["plan"]))
    parallelism = {vertex["id"]: vertex["parallelism"] for vertex in vertices(kept)}
    for node in graph["nodes"]:
        node["parallelism"] = parallelism[node["id"]]
    return {"plan": graph}


def _vertex(node: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": node["id"],
        "name": node["description"],
        "parallelism": node["parallelism"],
        "status": "CREATED",
        "start-time": -1,
        "end-time": -1,
        "duration": -1,
        "attempt": 0,
        "reason": "",
    }


def _millis(event: Happened) -> int:
    return int(event.unix_s * 1000)
