"""Pages and files that follow the code say what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slotwise.metrics.names import METRICS, samples_of
from slotwise.reference import PAGES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_OF_PROCESS = {"process_resident_memory_bytes": {"instance"}, "process_cpu_seconds_total": {"instance"}}
_WORD = re.compile(r"\b(?:slotwise|spark_application|process)_[a-z_]+")
_SELECTOR = re.compile(r"((?:slotwise|spark_application)_[a-z_]+)\{([^}]*)\}")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_from_the_code_is_the_codes(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


# ----------------------------------------------------------------------------------------------- the dashboard


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "grafana" / "slotwise.json").read_text(encoding="utf-8"))
    return found


def expressions(node: Any) -> list[str]:
    """Every PromQL expression below a node."""
    if isinstance(node, dict):
        own = [node["expr"]] if isinstance(node.get("expr"), str) else []
        return own + [found for value in node.values() for found in expressions(value)]
    return [found for value in node for found in expressions(value)] if isinstance(node, list) else []


def test_the_dashboard_asks_for_metrics_that_there_are(dashboard: dict[str, Any]) -> None:
    known = {sample for metric in METRICS.values() for sample in samples_of(metric)} | set(_OF_PROCESS)
    asked = {word for expression in expressions(dashboard) for word in _WORD.findall(expression)}
    assert asked
    assert asked <= known


def test_the_dashboard_uses_labels_that_the_metrics_have(dashboard: dict[str, Any]) -> None:
    by_sample = {sample: {*metric.labels, "le"} for metric in METRICS.values() for sample in samples_of(metric)}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, selector in _SELECTOR.findall(expression):
                assert set(re.findall(r"(\w+)\s*[=!]~?", selector)) <= by_sample[name], expression
            used = [by_sample.get(word, {"instance"}) for word in _WORD.findall(expression)]
            every = set().union(*used)
            grouped = {
                label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")
            }
            assert grouped <= every, expression
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= every | {"instance"}, expression


def test_a_rate_is_of_counters_alone(dashboard: dict[str, Any]) -> None:
    counters = {name for name, metric in METRICS.items() if metric.kind == "counter"} | set(_OF_PROCESS)
    counters |= {name for metric in METRICS.values() if metric.kind == "histogram" for name in samples_of(metric)}
    rated = [
        name for expression in expressions(dashboard) for name in re.findall(r"(?:rate|increase)\((\w+)", expression)
    ]
    assert rated
    assert set(rated) <= counters


def test_the_dashboards_panels_have_a_place_of_their_own(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]
