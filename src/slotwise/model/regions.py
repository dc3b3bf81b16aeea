"""The regions of a pipeline: what is scheduled together, in which order, and with slots of which size (FLIP-138,
'Lazily Built ExecutionGraph'; B: D-14, A-07).

A region is one stored dataset with the views that feed it, through all views of views. A view that several datasets
read is in the region of each. A region can start when the regions that it reads from are finished.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from slotwise.model.errors import SizeError
from slotwise.model.executor_conf import executor_size, task_slots, whole_number
from slotwise.model.job import ExecutorSize
from slotwise.model.job_graph import DatasetKind, GraphError, JobGraph, reads_of

MIN_KEY = "slotwise.parallelism.min"
MAX_KEY = "slotwise.parallelism.max"
_SIZE_KEYS = ("spark.executor.cores", "spark.executor.memory", "spark.executor.memoryOverhead", "spark.task.cpus")
_RESOURCE_PREFIX = "spark.executor.resource."


class RegionSize(msgspec.Struct, frozen=True):
    """The executors of a region: each of ``executor``, and so many tasks at once on each (``spark.task.cpus``).

    ``task_slots`` is what the executor is started with as its number of cores: Spark knows one ``spark.task.cpus`` an
    application, and a task that takes two of four cores is one that takes one of two.
    """

    executor: ExecutorSize
    task_slots: int


class Parallelism(msgspec.Struct, frozen=True):
    """How many slots a region runs with: at least ``least`` ≥ 1, at most ``most`` (None: no bound)."""

    least: int = 1
    most: int | None = None


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """One stored dataset, or sink, with the views that feed it.

    ``name`` is the stored dataset's; ``views`` in an order in which each comes after those it reads. ``needs`` are the
    regions whose datasets it reads, ``external`` the tables of others. ``size`` is None when the pipeline states none:
    then all its regions run in the job's own size of executors.
    """

    name: str
    kind: DatasetKind
    views: tuple[str, ...] = ()
    flows: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    size: RegionSize | None = None
    parallelism: Parallelism = Parallelism()


Selection = dict[str, bool]
"""The regions that are to run, in topological order: whether each starts from nothing (full refresh)."""


def regions_of(graph: JobGraph, job_conf: Mapping[str, str] | None = None) -> tuple[Region, ...]:
    """The regions of ``graph`` in topological order; of regions that could come next, the first defined comes first.

    ``job_conf`` is the job's configuration, over which the project's and the flows' own win. Raises
    :class:`SizeError` for sizes or bounds that cannot be used, and when some regions state a size and others do not
    while neither project nor job states one for all (B: D-14).
    """
    defaults = {**(job_conf or {}), **graph.configuration}
    stated = {name: _stated(graph, name) for name in _stored(graph)}
    _check_all_or_none(graph, stated, defaults)
    regions = {name: _region(graph, name, conf, defaults) for name, conf in stated.items()}
    ordered: dict[str, Region] = {}
    while len(ordered) < len(regions):
        # There is always one: the graph has no circles.
        ready = next(r for r in regions.values() if r.name not in ordered and ordered.keys() >= set(r.needs))
        ordered[ready.name] = ready
    return tuple(ordered.values())


def select(
    graph: JobGraph,
    regions: Sequence[Region],
    *,
    refresh: Collection[str] = (),
    full_refresh: Collection[str] = (),
    full_refresh_all: bool = False,
) -> Selection:
    """The regions that a run of these options updates: Spark's own rules for ``spark-pipelines run``.

    Without any option all of them are updated. Raises :class:`GraphError` for names that are unknown or are views, and
    for options that exclude each other.
    """
    if full_refresh_all and (refresh or full_refresh):
        raise GraphError("a full refresh of all datasets leaves nothing to select: name datasets or all, not both")
    if full_refresh_all or not (refresh or full_refresh):
        return {region.name: full_refresh_all for region in regions}
    chosen: dict[str, bool] = {}
    for names, full in ((refresh, False), (full_refresh, True)):
        for name in names:
            dataset = graph.find(name)
            if not dataset.kind.is_stored:
                raise GraphError(f"{dataset.name} is a view: it is computed by what reads it and cannot be refreshed")
            if chosen.get(dataset.name, full) != full:
                raise GraphError(f"{dataset.name} is named for a refresh and for a full refresh")
            chosen[dataset.name] = full
    return {region.name: chosen[region.name] for region in regions if region.name in chosen}


def schedulable(
    regions: Sequence[Region], selected: Collection[str], started: Collection[str], finished: Collection[str]
) -> tuple[Region, ...]:
    """The selected regions that could start now: not started, and all selected regions that they read are finished.

    What is not selected counts as there: its dataset is read as an earlier run has left it (B: A-07).
    """
    return tuple(
        region
        for region in regions
        if region.name in selected
        and region.name not in started
        and region.name not in finished
        and all(need in finished for need in region.needs if need in selected)
    )


def plan(job_id: str, name: str, regions: Sequence[Region], parallelism: Mapping[str, int]) -> dict[str, Any]:
    """The graph in the shape of Flink's ``/jobs/:id/plan``: a node a region, stored datasets between them.

    ``parallelism`` says what regions run with; those that are not in it show their least.
    """
    nodes: list[dict[str, Any]] = [
        {
            "id": region.name,
            "parallelism": parallelism.get(region.name, region.parallelism.least),
            "operator": region.kind.value,
            "operator_strategy": "",
            "description": " → ".join([*region.views, region.name]),
            "inputs": [
                {"num": number, "id": need, "ship_strategy": "FORWARD", "exchange": "blocking"}
                for number, need in enumerate(region.needs)
            ],
            "optimizer_properties": {},
        }
        for region in regions
    ]
    return {"jid": job_id, "name": name, "type": "BATCH", "nodes": nodes}


def _stored(graph: JobGraph) -> list[str]:
    return [dataset.name for dataset in graph.datasets if dataset.kind.is_stored]


def _region(graph: JobGraph, name: str, stated: Mapping[str, str], defaults: Mapping[str, str]) -> Region:
    dataset = graph.find(name)
    views = _views(graph, name)
    members = [*views, name]
    flows = [flow for member in members for flow in graph.flows_into(member)]
    reads = [read for flow in flows for read in flow.inputs]
    stored = set(_stored(graph)) - {name}
    own = {member.name for member in graph.datasets}
    conf = {**defaults, **stated}
    try:
        size = None
        if _sizes(conf):
            executor = executor_size(conf)
            size = RegionSize(executor, task_slots(conf, executor.cores))
        parallelism = _parallelism(conf)
    except SizeError as error:
        raise SizeError(f"{name}: {error}") from None
    return Region(
        name=name,
        kind=dataset.kind,
        views=tuple(views),
        flows=tuple(flow.name for flow in flows),
        needs=tuple(dict.fromkeys(read for read in reads if read in stored)),
        external=tuple(dict.fromkeys(read for read in reads if read not in own)),
        size=size,
        parallelism=parallelism,
    )


def _views(graph: JobGraph, name: str) -> list[str]:
    """The views behind ``name``, each after those that it reads."""
    found: dict[str, None] = {}
    stack = [(name, False)]
    while stack:
        current, leaving = stack.pop()
        if leaving:
            found.setdefault(current)
            continue
        if current != name:
            stack.append((current, True))
        for read in reversed(reads_of(graph, current)):
            dataset = graph.dataset(read)
            if dataset is not None and not dataset.kind.is_stored and read not in found:
                stack.append((read, False))
    return list(found)


def _stated(graph: JobGraph, name: str) -> dict[str, str]:
    """What a region's own flows and views say of its size: the dataset's flows win over its views."""
    said = _merged(graph, [name])
    return {**_merged(graph, _views(graph, name), but=said), **said}


def _merged(graph: JobGraph, names: Collection[str], but: Collection[str] = ()) -> dict[str, str]:
    merged: dict[str, tuple[str, str]] = {}
    for flow in (flow for name in names for flow in graph.flows_into(name)):
        for key, value in flow.conf.items():
            if key in but or not _about_slots(key):
                continue
            other, known = merged.setdefault(key, (flow.name, value))
            if known != value:
                raise SizeError(f"{key} is {known} in flow {other} and {value} in flow {flow.name} of the same region")
    return {key: value for key, (_, value) in merged.items()}


def _about_slots(key: str) -> bool:
    return key in _SIZE_KEYS or key in (MIN_KEY, MAX_KEY) or key.startswith(_RESOURCE_PREFIX)


def _sizes(conf: Mapping[str, str]) -> bool:
    return any(key in _SIZE_KEYS or key.startswith(_RESOURCE_PREFIX) for key in conf)


def _check_all_or_none(graph: JobGraph, stated: Mapping[str, Mapping[str, str]], defaults: Mapping[str, str]) -> None:
    with_size = [name for name, conf in stated.items() if _sizes(conf)]
    without = [name for name, conf in stated.items() if not _sizes(conf)]
    if with_size and without and not _sizes(defaults):
        raise SizeError(
            f"a pipeline must state the sizes of all its datasets or of none: {graph.name!r} states those of "
            f"{', '.join(with_size)} but not of {', '.join(without)}. Give a size to each, or one for all in "
            "'configuration' of the project's specification"
        )


def _parallelism(conf: Mapping[str, str]) -> Parallelism:
    least = whole_number(conf.get(MIN_KEY, "1"), MIN_KEY, 1)
    if MAX_KEY not in conf:
        return Parallelism(least)
    most = whole_number(conf[MAX_KEY], MAX_KEY, 1)
    if most < least:
        raise SizeError(f"{MAX_KEY}={most} is below {MIN_KEY}={least}")
    return Parallelism(least, most)
