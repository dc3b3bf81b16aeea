"""Pages and files that follow the code say what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from slotwise.config_options import OPTIONS
from slotwise.jobmaster.rescaling import RescaleCause
from slotwise.metrics.names import METRICS, samples_of
from slotwise.model.job import JobState
from slotwise.protocol.messages import ShortageReason
from slotwise.reference import PAGES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_OF_PROCESS = {"process_resident_memory_bytes": {"instance"}, "process_cpu_seconds_total": {"instance"}}
_WORD = re.compile(r"\b(?:slotwise|spark_application|process)_[a-z_]+")
_SELECTOR = re.compile(r"((?:slotwise|spark_application)_[a-z_]+)\{([^}]*)\}")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_from_the_code_is_the_codes(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


@pytest.mark.parametrize("reason", ShortageReason)
def test_every_reason_of_a_shortage_is_explained_under_its_name(reason: ShortageReason) -> None:
    text = (DOCS / "explain.md").read_text(encoding="utf-8")
    section = text.partition(f"### `{reason.name}`\n")[2].partition("\n#")[0]
    meaning, quote, advice = section.strip().split("\n\n", 2)
    assert meaning == reason.value
    assert quote.startswith("> ")
    assert len(advice) > 100


def test_no_reason_is_explained_that_there_is_not() -> None:
    text = (DOCS / "explain.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### `(\w+)`$", text, re.MULTILINE)) == {reason.name for reason in ShortageReason}


def test_every_cause_of_a_rescale_and_every_state_is_named() -> None:
    explain = (DOCS / "explain.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", explain, re.MULTILINE)) == {cause.value for cause in RescaleCause}
    concepts = (DOCS / "concepts.md").read_text(encoding="utf-8")
    rows = "".join(line.split(" | ")[0] for line in concepts.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([A-Z_]+)`", rows)) == {state.value for state in JobState}


# ----------------------------------------------------------------------------------------------- pages by hand


PAGES_BY_HAND = sorted({ROOT / "README.md", *DOCS.glob("*.md")})
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES_BY_HAND, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES_BY_HAND, ids=lambda page: page.name)
def test_metrics_and_options_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = {sample for metric in METRICS.values() for sample in samples_of(metric)} | set(METRICS)
    assert {word for word in _WORD.findall(text) if not word.endswith("_")} - set(_OF_PROCESS) <= known
    first = {key.partition(".")[0] for key in OPTIONS}
    named = {
        word
        for word in re.findall(r"`([a-z][a-zA-Z-]*(?:\.[a-zA-Z-]+)+)(?: [^`]*)?`", text)
        if word.partition(".")[0] in first
    }
    assert named <= set(OPTIONS), page.name


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if page.name not in index] == []


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_can_be_read_in_the_dark_and_by_those_who_do_not_see_it(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    names = {child.tag.rpartition("}")[2]: child.text for child in root}
    assert names["title"]
    assert len(names["desc"] or "") > 50
    assert "prefers-color-scheme: dark" in text
    # Every colour is in the style, where the dark one can take its place.
    assert not re.search(r"(fill|stroke)=\"(#|rgb|black|white)", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("HTTP", "")
    used = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    assert f"pictures/{picture.name}" in used


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
