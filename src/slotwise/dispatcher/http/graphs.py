"""A job's graph and what has become of its parts, in the shapes of Flink's REST API.

Both are made of the job's events, so that they are there after its end and under another master. A vertex of a pipeline
is a region; an application is one vertex: what Spark runs in it is not known before."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slotwise.dispatcher.http.job_shapes import APPLICATION, Plan, PlanInfo, PlanNode, TaskCounts, Vertex
from slotwise.dispatcher.machine import JobRecord
from slotwise.runtime.events import Happened

_STARTED = "RUNNING"
_ENDED = ("FINISHED", "CANCELED", "FAILED")


def vertices(events: Sequence[Happened]) -> list[Vertex]:
    """Each region of a pipeline: its state, its parallelism, when it ran, how often it was tried, and why it failed."""
    found: dict[str, Vertex] = {}
    for event in events:
        if event.name == "job-graph":
            graph = _graph(event)
            found = {
                node.id: found.get(node.id) or Vertex(id=node.id, name=node.description, parallelism=node.parallelism)
                for node in graph.nodes
            }
        elif event.name == "region" and event.fields["region"] in found:
            vertex = found[str(event.fields["region"])]
            vertex.status = str(event.fields["state"])
            vertex.parallelism = int(event.fields["parallelism"] or vertex.parallelism)
            vertex.attempt = int(event.fields["attempt"] or 0)
            vertex.reason = str(event.fields.get("reason", ""))
            if vertex.status == _STARTED:
                vertex.start_time, vertex.end_time, vertex.duration = _millis(event), -1, -1
            elif vertex.status in _ENDED and vertex.start_time >= 0:
                vertex.end_time = _millis(event)
                vertex.duration = vertex.end_time - vertex.start_time
    for vertex in found.values():
        vertex.tasks = TaskCounts(**{"total": vertex.parallelism, vertex.status.lower(): vertex.parallelism})
    return list(found.values())


def plan(record: JobRecord, events: Sequence[Happened]) -> PlanInfo:
    """GET /v1/jobs/:jobid/plan. A pipeline's is empty until its definitions are read."""
    graph = Plan(record.job, record.spec.name)
    if record.spec.pipeline is None:
        graph.nodes = [PlanNode(APPLICATION, record.spec.initial_executors, description=record.spec.program)]
        return PlanInfo(graph)
    for event in events:
        if event.name == "job-graph":
            graph = _graph(event)
    parallelism = {vertex.id: vertex.parallelism for vertex in vertices(events)}
    for node in graph.nodes:
        node.parallelism = parallelism[node.id]
    return PlanInfo(graph)


def _graph(event: Happened) -> Plan:
    return msgspec.json.decode(str(event.fields["plan"]), type=Plan)


def _millis(event: Happened) -> int:
    return int(event.unix_s * 1000)
