"""Tools that read Flink's REST API can read this one: every method and path of the pinned subset, in its shapes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft3Validator
from jsonschema.exceptions import ValidationError

from slotwise.model.ids import JobId
from tests.service.served import Served, served

CALLS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("flink_rest_v1_subset.json").read_text())["calls"]
GETS = [call for call in CALLS if call["method"] == "GET"]
STATES = ("running", "pipeline", "waiting", "finished", "failed", "canceled")
# Flink leaves these out as well: where nothing has happened yet, and for roots of a plan.
OPTIONAL = {"job-execution-result"}
Busy = tuple[Served, dict[str, JobId]]


def resolved(schema: Any, known: dict[str, Any]) -> Any:
    """The schema without references: they name an id that stands elsewhere in it."""
    if isinstance(schema, list):
        return [resolved(part, known) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return resolved(known.get(schema["$ref"], {"type": "object"}), known)
    return {key: resolved(part, known) for key, part in schema.items() if key != "id" or not isinstance(part, str)}


def ids_of(schema: Any, found: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema, dict):
        if isinstance(schema.get("id"), str):
            found.setdefault(schema["id"], schema)
        for part in schema.values():
            ids_of(part, found)
    elif isinstance(schema, list):
        for part in schema:
            ids_of(part, found)
    return found


def complete(schema: Any) -> Any:
    """The schema with every property required: a reader may look at each of them."""
    if isinstance(schema, list):
        return [complete(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: complete(part) for key, part in schema.items()}
    if isinstance(found.get("properties"), dict):
        for name, part in found["properties"].items():
            if name not in OPTIONAL:
                part["required"] = True
    return found


def schema_of(call: dict[str, Any]) -> Any:
    return complete(resolved(call["response"], ids_of(call["response"], {})))


def path_of(call: dict[str, Any], **values: str) -> str:
    return "/v1" + re.sub(r":(\w+)", lambda found: values[found[1]], call["url"])


def check(call: dict[str, Any], answer: httpx.Response) -> None:
    assert answer.status_code == int(call["status-code"].split()[0]), answer.text
    assert answer.headers["content-type"] == "application/json"
    Draft3Validator(schema_of(call)).validate(answer.json())


@pytest.mark.parametrize("call", [call for call in GETS if ":jobid" in call["url"]], ids=lambda call: call["url"])
@pytest.mark.parametrize("state", STATES)
def test_a_job_is_shown_in_flinks_shapes(busy: Busy, call: dict[str, Any], state: str) -> None:
    service, jobs = busy
    with service.client() as client:
        check(call, client.get(path_of(call, jobid=jobs[state])))


@pytest.mark.parametrize("call", [call for call in GETS if ":jobid" not in call["url"]], ids=lambda call: call["url"])
def test_the_cluster_is_shown_in_flinks_shapes(busy: Busy, call: dict[str, Any]) -> None:
    service, _ = busy
    (worker, *_) = service.master.resource_manager.slots.workers
    with service.client() as client:
        answer = client.get(path_of(call, taskmanagerid=worker))
        check(call, answer)
        # Not met by empty lists.
        found = answer.json()
        assert found
        assert all(found[name] for name in ("logs", "jobs", "taskmanagers") if call["url"].endswith(name))


def test_jobs_are_changed_with_flinks_calls(tmp_path: Path) -> None:
    by_name = {(call["method"], call["url"]): call for call in CALLS}
    changes = {name for name in by_name if name[0] != "GET"}
    with served(tmp_path) as service, service.client() as client:
        job = service.submit(max_executors=8)
        ended: list[bool] = []
        service.master.on_shut_down = lambda: ended.append(True)

        put = by_name["PUT", "/jobs/:jobid/resource-requirements"]
        body = {"jobVertexResourceRequirements": {"application": {"parallelism": {"lowerBound": 2, "upperBound": 4}}}}
        Draft3Validator(resolved(put["request"], {})).validate(body)
        answer = client.put(path_of(put, jobid=job), json=body)
        check(put, answer)
        assert answer.json() == body == client.get(path_of(put, jobid=job)).json()

        patch = by_name["PATCH", "/jobs/:jobid"]
        for _ in range(3):
            check(patch, client.patch(path_of(patch, jobid=job)))
        check(patch, client.patch(path_of(patch, jobid=job), params={"mode": "cancel"}))

        delete = by_name["DELETE", "/cluster"]
        check(delete, client.delete(path_of(delete)))
        assert ended == [True]
        assert changes == {(call["method"], call["url"]) for call in (put, patch, delete)}


def test_the_check_finds_a_missing_field_and_a_wrong_type() -> None:
    (call,) = [call for call in CALLS if call["url"] == "/jobs/:jobid/status"]
    for wrong in ({}, {"status": 1}, {"status": "SLEEPING"}):
        with pytest.raises(ValidationError):
            Draft3Validator(schema_of(call)).validate(wrong)


def test_what_the_answers_say(busy: Busy) -> None:
    service, jobs = busy
    with service.client() as client:

        def get(path: str) -> Any:
            return client.get(f"/v1{path}").json()

        details = {state: get(f"/jobs/{job}") for state, job in jobs.items()}
        assert {state: found["state"] for state, found in details.items()} == {
            **{"running": "RUNNING", "pipeline": "RUNNING", "waiting": "CREATED"},
            **{"finished": "FINISHED", "failed": "FAILED", "canceled": "CANCELED"},
        }
        for found in details.values():
            assert found["timestamps"][found["state"]] > 0
            assert get(f"/jobs/{found['jid']}/status") == {"status": found["state"]}
            assert found["plan"] == get(f"/jobs/{found['jid']}/plan")["plan"]
            assert sum(found["status-counts"].values()) == len(found["vertices"])
        assert [vertex["status"] for vertex in details["pipeline"]["vertices"]] == ["RUNNING", "CREATED"]
        assert details["running"]["vertices"][0]["parallelism"] == 2
        assert details["running"]["application-id"]

        (failure, *_) = get(f"/jobs/{jobs['failed']}/exceptions")["exceptionHistory"]["entries"]
        assert failure["exceptionName"] == "JobFailed"
        assert "code 3" in failure["stacktrace"]
        assert get(f"/jobs/{jobs['finished']}/exceptions")["exceptionHistory"] == {"entries": [], "truncated": False}
        limited = get(f"/jobs/{jobs['failed']}/exceptions?maxExceptions=0")["exceptionHistory"]
        assert limited == {"entries": [], "truncated": True}

        for state, word in (("finished", "SUCCEEDED"), ("failed", "FAILED"), ("canceled", "CANCELED")):
            result = get(f"/jobs/{jobs[state]}/execution-result")
            assert result["status"] == {"id": "COMPLETED"}
            assert result["job-execution-result"]["application-status"] == word
        assert get(f"/jobs/{jobs['failed']}/execution-result")["job-execution-result"]["exit-code"] == 3
        assert get(f"/jobs/{jobs['running']}/execution-result") == {"status": {"id": "IN_PROGRESS"}}

        conf = get(f"/jobs/{jobs['running']}/config")["execution-config"]["user-config"]
        assert conf == {"spark.hadoop.fs.s3a.secret.key": "*********(redacted)"}
        (worker,) = get("/taskmanagers")["taskmanagers"]
        one = get(f"/taskmanagers/{worker['id']}")
        for ages in (worker, one):
            ages.pop("timeSinceLastHeartbeat")
        assert worker.items() <= one.items()
        slots = worker["allocatedSlots"]
        assert (
            sum(slot["resource"]["memory_bytes"] for slot in slots) + worker["freeResource"]["memory_bytes"]
            == (worker["totalResource"]["memory_bytes"])
        )
        overview = get("/overview")
        assert (overview["taskmanagers"], overview["slots-total"]) == (1, len(slots))
        assert [overview[f"jobs-{what}"] for what in ("running", "finished", "cancelled", "failed")] == [3, 1, 1, 1]
