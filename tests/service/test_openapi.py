"""The described surface: pinned in a file, and true of what is served (`python -m tests.service.test_openapi` pins)."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from slotwise.dispatcher.http import openapi
from slotwise.dispatcher.http.proxy import SparkUi
from slotwise.dispatcher.http.routes import table
from tests.service.served import TOKEN, Served, served

PINNED = Path(__file__).with_name("rest_api.json")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def surface_of(service: Served) -> dict[str, Any]:
    return openapi.surface(table(service.master, SparkUi(service.master)))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("openapi")) as made:
        made.submit(name="there")
        yield made


def test_the_surface_is_the_pinned_one(service: Served) -> None:
    found, pinned = surface_of(service), json.loads(PINNED.read_text())
    assert found == pinned, "if the change is meant, pin it: python -m tests.service.test_openapi"


def test_the_document_is_complete_and_refers_to_nothing_that_is_not_there(service: Served) -> None:
    with service.client() as client:
        document = client.get("/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    text = json.dumps(document)
    names = set(re.findall(r"#/components/schemas/([^\"]+)", text))
    assert names == set(document["components"]["schemas"])
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    for path, methods in document["paths"].items():
        in_path = set(re.findall(r"{(\w+)}", path))
        for operation in methods.values():
            assert operation["summary"]
            described = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert described == in_path


def test_the_page_lists_every_call_and_loads_nothing_from_elsewhere(service: Served) -> None:
    with service.client() as client:
        page = client.get("/v1/docs")
        document = client.get("/v1/openapi.json").json()
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "://" not in page.text
    assert "<script" not in page.text
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in page.text


# Streams without an end; another process's answers; the end of the cluster.
LEFT_OUT = r"^/v1/(events|jobs/\{job\}/spark-ui.*|cluster)$"


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_no_answer_is_a_failure_or_undescribed(service: Served, mode: schemathesis.GenerationMode) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    loaded = schemathesis.openapi.from_url(f"{service.url}/v1/openapi.json", headers=headers)
    (job, *_) = service.master.dispatcher.jobs
    called: Counter[str] = Counter()

    def check(case: Any) -> None:
        name = f"{case.method.upper()} {case.operation.path}"
        called[name] += 1
        if "job" in case.path_parameters and called[name] % 2:
            case.path_parameters["job"] = job
        case.call_and_validate(headers=headers, checks=CHECKS)

    limits = settings(
        max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    for result in loaded.exclude(path_regex=LEFT_OUT).get_all_operations():
        operation: Any = result.ok() if isinstance(result, Ok) else None
        with contextlib.suppress(Unsatisfiable):
            # A call that takes nothing cannot be made wrongly.
            limits(given(case=operation.as_strategy(generation_mode=mode))(check))()
    assert sum(1 for count in called.values() if count > 1) > 20


def pin() -> None:
    """Write the pinned file anew."""
    with tempfile.TemporaryDirectory() as directory, served(Path(directory)) as made:
        PINNED.write_text(json.dumps(surface_of(made), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    pin()
    sys.exit(0)
