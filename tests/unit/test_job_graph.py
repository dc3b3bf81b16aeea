"""The captured graph of a pipeline, and the regions it is cut into."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.model.errors import SizeError
from slotwise.model.job_graph import Dataset, DatasetKind, Flow, GraphError, JobGraph, decode_graph, find_cycle
from slotwise.model.regions import Parallelism, Region, plan, regions_of, schedulable, select
from slotwise.model.resources import GIB, MIB

MV, TABLE, SINK, VIEW = (
    DatasetKind.MATERIALIZED_VIEW,
    DatasetKind.STREAMING_TABLE,
    DatasetKind.SINK,
    DatasetKind.TEMPORARY_VIEW,
)
CORES, MEMORY = "spark.executor.cores", "spark.executor.memory"


def graph(
    kinds: dict[str, DatasetKind],
    reads: dict[str, tuple[str, ...]],
    conf: dict[str, dict[str, str]] | None = None,
    *,
    flows: tuple[Flow, ...] = (),
    **more: Any,
) -> JobGraph:
    """One flow for each of ``reads``, named as its target, and ``flows``."""
    implicit = [Flow(name, name, inputs, (conf or {}).get(name, {}), False, "") for name, inputs in reads.items()]
    return JobGraph(
        name="shop",
        catalog="spark_catalog",
        database="default",
        datasets=tuple(Dataset(name, kind) for name, kind in kinds.items()),
        flows=(*implicit, *flows),
        **more,
    )


# raw → clean (view) → daily, monthly; monthly → report (view) → out
KINDS = {"monthly": MV, "raw": MV, "clean": VIEW, "daily": MV, "report": VIEW, "out": SINK}
READS: dict[str, tuple[str, ...]] = {
    "raw": ("other.lake.events",),
    "clean": ("raw",),
    "daily": ("clean",),
    "monthly": ("daily", "clean"),
    "report": ("monthly",),
    "out": ("report",),
}


def by_name(regions: tuple[Region, ...]) -> dict[str, Region]:
    return {region.name: region for region in regions}


def test_a_region_is_a_stored_dataset_with_its_views() -> None:
    regions = regions_of(graph(KINDS, READS))
    assert [region.name for region in regions] == ["raw", "daily", "monthly", "out"]
    found = by_name(regions)
    assert found["daily"].views == ("clean",)
    assert found["monthly"].views == ("clean",)
    assert found["monthly"].flows == ("clean", "monthly")
    assert found["monthly"].needs == ("raw", "daily")
    assert found["out"].views == ("report",)
    assert found["out"].needs == ("monthly",)
    assert found["raw"].external == ("other.lake.events",)
    assert graph(KINDS, READS).external_inputs == ("other.lake.events",)
    assert all(region.size is None for region in regions)


def test_views_of_views_come_in_the_order_in_which_they_are_read() -> None:
    kinds = {"a": VIEW, "b": VIEW, "c": VIEW, "t": MV}
    regions = regions_of(graph(kinds, {"a": (), "b": ("a",), "c": ("b", "a"), "t": ("c", "a")}))
    assert regions[0].views == ("a", "b", "c")


def test_a_circle_is_named() -> None:
    with pytest.raises(GraphError, match="in a circle: daily → monthly → daily"):
        graph({"daily": MV, "monthly": MV, "view": VIEW}, {"daily": ("monthly",), "monthly": ("daily",), "view": ()})
    with pytest.raises(GraphError, match="in a circle: a → a"):
        graph({"a": MV}, {"a": ("a",)})


@pytest.mark.parametrize(
    ("kinds", "reads", "flows", "message"),
    [
        ({"a": MV}, {}, (Flow("f", "a"), Flow("g", "a")), r"a is written by 2 flows \(f, g\)"),
        ({"a": MV}, {"a": (), "b": ()}, (), "flow b writes to b, which nothing defines"),
        ({"a": MV, "b": TABLE}, {"a": ()}, (), "no flow writes to b"),
        ({"a": MV}, {"a": ()}, (Flow("a", "a"),), "two flows are called a"),
        ({"v": VIEW}, {"v": ()}, (), "stores nothing"),
        ({"s": SINK, "a": MV}, {"s": (), "a": ("s",)}, (), "flow a reads s, which is a sink"),
    ],
)
def test_what_makes_no_sense_is_refused(kinds: Any, reads: Any, flows: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph(kinds, reads, flows=flows)


def test_errors_say_where() -> None:
    datasets = (Dataset("a", MV, "a.py:3"), Dataset("a", MV, "b.sql:9"))
    with pytest.raises(GraphError, match=r"two datasets are called a \(a.py:3, b.sql:9\)"):
        JobGraph(name="shop", catalog="c", database="d", datasets=datasets, flows=())


def test_a_streaming_table_may_have_several_flows() -> None:
    flows = (Flow("f", "t", ("x",)), Flow("g", "t", ("y",), once=True))
    regions = regions_of(graph({"t": TABLE}, {}, flows=flows))
    assert regions[0].flows == ("f", "g")
    assert regions[0].external == ("x", "y")


def test_the_graph_goes_through_json() -> None:
    original = graph(KINDS, READS, {"daily": {CORES: "2", MEMORY: "2g"}}, configuration={"k": "v"})
    assert decode_graph(msgspec.json.encode(original)) == original
    as_text = json.loads(msgspec.json.encode(regions_of(graph(KINDS, READS))[1]))
    assert (as_text["name"], as_text["kind"], as_text["parallelism"]) == (
        "daily",
        "materialized_view",
        {"least": 1, "most": None},
    )


def test_a_captured_graph_that_breaks_a_rule_says_which() -> None:
    shape = {"name": "n", "catalog": "c", "database": "d", "datasets": [], "flows": []}
    with pytest.raises(GraphError, match=r"^the pipeline 'n' stores nothing"):
        decode_graph(json.dumps(shape).encode())
    with pytest.raises(GraphError, match="cannot be understood"):
        decode_graph(b'{"name": 3}')
    with pytest.raises(GraphError, match="cannot be understood"):
        decode_graph(b"no JSON")


# ---- sizes ----


def test_a_region_has_the_size_that_its_flow_states() -> None:
    conf = {
        "raw": {CORES: "1", MEMORY: "512m"},
        "daily": {CORES: "4", MEMORY: "2g", "spark.executor.memoryOverhead": "1g", "spark.task.cpus": "2"},
        "monthly": {CORES: "1", "spark.executor.resource.gpu.amount": "1", "slotwise.parallelism.max": "3"},
        "out": {CORES: "1"},
    }
    found = by_name(regions_of(graph(KINDS, READS, conf)))
    size = found["daily"].size
    assert size is not None
    assert (size.executor.cores, size.executor.heap_bytes, size.executor.overhead_bytes) == (4, 2 * GIB, GIB)
    assert size.task_slots == 2
    monthly = found["monthly"].size
    assert monthly is not None
    assert monthly.executor.profile.extended == (("gpu", 1),)
    assert found["monthly"].parallelism == Parallelism(1, 3)


def test_a_view_states_for_the_datasets_that_read_it_and_do_not() -> None:
    kinds = {"v": VIEW, "a": MV, "b": MV}
    conf = {"v": {CORES: "2"}, "b": {CORES: "3"}}
    found = by_name(regions_of(graph(kinds, {"v": (), "a": ("v",), "b": ("v",)}, conf)))
    sizes = [found[name].size for name in "ab"]
    assert [size.executor.cores for size in sizes if size is not None] == [2, 3]


def test_two_views_or_flows_of_a_region_that_contradict_each_other_are_refused() -> None:
    kinds = {"v": VIEW, "w": VIEW, "a": MV}
    reads: dict[str, tuple[str, ...]] = {"v": (), "w": (), "a": ("v", "w")}
    with pytest.raises(SizeError, match=r"spark.executor.cores is 2 in flow v and 3 in flow w"):
        regions_of(graph(kinds, reads, {"v": {CORES: "2"}, "w": {CORES: "3"}}))
    regions_of(graph(kinds, reads, {"v": {CORES: "2", "spark.sql.x": "1"}, "w": {CORES: "2", "spark.sql.x": "2"}}))


def test_d_14_stated_and_unstated_sizes_are_not_mixed() -> None:
    conf = {"daily": {CORES: "2"}}
    with pytest.raises(SizeError, match=r"'shop' states those of daily but not of monthly, raw, out"):
        regions_of(graph(KINDS, READS, conf))
    for regions in (
        regions_of(graph(KINDS, READS, conf, configuration={CORES: "1"})),
        regions_of(graph(KINDS, READS, conf), {MEMORY: "1g"}),
    ):
        sizes = {region.name: region.size for region in regions}
        assert all(size is not None for size in sizes.values())
        assert sizes["daily"] is not None
        assert sizes["daily"].executor.cores == 2
        assert sizes["raw"] is not None
        assert (sizes["raw"].executor.cores, sizes["raw"].executor.heap_bytes) == (1, 1024 * MIB)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"slotwise.parallelism.min": "0"}, r"raw: slotwise.parallelism.min must be at least 1, not 0"),
        ({"slotwise.parallelism.max": "0"}, r"slotwise.parallelism.max must be at least 1"),
        ({"slotwise.parallelism.min": "3", "slotwise.parallelism.max": "2"}, "max=2 is below slotwise.parallelism.min"),
        ({"slotwise.parallelism.min": "two"}, "is not a whole number"),
        ({CORES: "0"}, "must be at least 1"),
        ({CORES: "1", "spark.task.cpus": "2"}, "does not fit into an executor of 1 core"),
        ({MEMORY: "100m"}, "raw: .* needs a heap of at least 450 MiB"),
    ],
)
def test_sizes_and_bounds_that_cannot_be_used_name_the_dataset(conf: dict[str, str], message: str) -> None:
    with pytest.raises(SizeError, match=message):
        regions_of(graph({"raw": MV}, {"raw": ()}, {"raw": conf}))


def test_bounds_alone_state_no_size() -> None:
    regions = regions_of(graph(KINDS, READS, {"daily": {"slotwise.parallelism.min": "2"}}))
    assert by_name(regions)["daily"].parallelism == Parallelism(2, None)
    assert all(region.size is None for region in regions)


# ---- what runs, and when ----

SHOP = "spark_catalog.default."
NAMED = {f"{SHOP}raw": MV, "clean": VIEW, f"{SHOP}daily": TABLE, "spark_catalog.mart.top": MV}
NAMED_READS: dict[str, tuple[str, ...]] = {
    f"{SHOP}raw": (),
    "clean": (f"{SHOP}raw",),
    f"{SHOP}daily": ("clean",),
    "spark_catalog.mart.top": (f"{SHOP}daily",),
}


def test_a_refresh_selects_by_short_and_by_full_names() -> None:
    shop = graph(NAMED, NAMED_READS)
    regions = regions_of(shop)
    assert select(shop, regions) == {region.name: False for region in regions}
    assert set(select(shop, regions, full_refresh_all=True).values()) == {True}
    chosen = select(shop, regions, refresh=["mart.top"], full_refresh=["raw"])
    assert list(chosen.items()) == [(f"{SHOP}raw", True), ("spark_catalog.mart.top", False)]
    assert select(shop, regions, refresh=[f"{SHOP}daily"]) == {f"{SHOP}daily": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refresh": ["nothing"]}, "has no dataset 'nothing'; it has spark_catalog.default.raw, clean"),
        ({"refresh": ["clean"]}, "clean is a view"),
        ({"refresh": ["raw"], "full_refresh": ["default.raw"]}, "named for a refresh and for a full refresh"),
        ({"refresh": ["raw"], "full_refresh_all": True}, "not both"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(options: Any, message: str) -> None:
    shop = graph(NAMED, NAMED_READS)
    with pytest.raises(GraphError, match=message):
        select(shop, regions_of(shop), **options)


def test_a_07_a_region_is_schedulable_when_those_it_reads_are_finished() -> None:
    regions = regions_of(graph(KINDS, READS))
    every = {region.name for region in regions}

    def next_ones(started: set[str], finished: set[str], selected: set[str] = every) -> list[str]:
        return [region.name for region in schedulable(regions, selected, started, finished)]

    assert next_ones(set(), set()) == ["raw"]
    assert next_ones({"raw"}, set()) == []
    assert next_ones({"raw"}, {"raw"}) == ["daily"]
    assert next_ones(set(), {"raw", "daily"}) == ["monthly"]
    # What is not selected is read as it was left.
    assert next_ones(set(), set(), {"daily", "out"}) == ["daily", "out"]


@given(st.data())
def test_every_order_of_definition_gives_an_order_in_which_reads_come_first(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    names = [f"d{number}" for number in range(count)]
    reads: dict[str, tuple[str, ...]] = {}
    for number, name in enumerate(names):
        reads[name] = tuple(data.draw(st.lists(st.sampled_from(names[:number]), unique=True))) if number else ()
    kinds = {name: data.draw(st.sampled_from([MV, TABLE, VIEW])) for name in names}
    kinds[data.draw(st.sampled_from(names))] = MV
    shuffled = {name: kinds[name] for name in data.draw(st.permutations(names))}
    made = graph(shuffled, reads)
    regions = regions_of(made)
    assert {region.name for region in regions} == {name for name in names if kinds[name] is not VIEW}
    done: set[str] = set()
    for region in regions:
        assert set(region.needs) <= done
        assert region.name in {ready.name for ready in schedulable(regions, set(names), set(), done)}
        done.add(region.name)
        computed: set[str] = set()
        for view in region.views:
            assert {read for read in reads[view] if kinds[read] is VIEW} <= computed
            computed.add(view)
    # Whoever closes a circle is found out.
    first, last = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
    closing = {**reads, first: (*reads[first], last)}
    cycle = find_cycle(closing)
    if cycle is not None:
        assert cycle[0] == cycle[-1]
        assert all(before in closing[after] for before, after in itertools.pairwise(cycle))
    reaches = {first}
    for name in names:
        if any(read in reaches for read in reads[name]):
            reaches.add(name)
    assert (cycle is not None) == (last in reaches)


def test_a_deep_pipeline_needs_no_deep_stack() -> None:
    names = [f"d{number}" for number in range(3000)]
    assert find_cycle({name: names[number + 1 : number + 2] for number, name in enumerate(names)}) is None


def test_the_plan_has_the_shape_of_flinks() -> None:
    shown = plan("job-1", "shop", regions_of(graph(KINDS, READS)), {"daily": 3})
    assert (shown["jid"], shown["name"], shown["type"]) == ("job-1", "shop", "BATCH")
    nodes = {node["id"]: node for node in shown["nodes"]}
    assert nodes["daily"]["parallelism"] == 3
    assert nodes["monthly"]["parallelism"] == 1
    assert nodes["daily"]["description"] == "clean → daily"
    assert [(entry["num"], entry["id"]) for entry in nodes["monthly"]["inputs"]] == [(0, "raw"), (1, "daily")]
