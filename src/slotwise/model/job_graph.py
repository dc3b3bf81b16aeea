"""The job graph of a pipeline: its datasets and flows as they were captured, and the rules that they must keep
(FLIP-138, 'Lazily Built ExecutionGraph'; design, 'Job kinds').

A stored dataset (materialized view, streaming table) or a sink ends a chain of flows: what reads it waits for it. A
view is stored nowhere, so it is computed anew in every dataset that reads it. :mod:`slotwise.model.regions` cuts the
graph along the stored ones.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from slotwise.model.errors import UsageError


class GraphError(UsageError):
    """A pipeline's datasets and flows make no sense together; the text names those at fault."""


class DatasetKind(enum.Enum):
    """What a flow writes to."""

    MATERIALIZED_VIEW = "materialized_view"
    STREAMING_TABLE = "streaming_table"
    SINK = "sink"
    TEMPORARY_VIEW = "temporary_view"
    PERSISTED_VIEW = "persisted_view"

    @property
    def is_stored(self) -> bool:
        """Whether it is written somewhere, so that it ends a region; views are part of their readers' regions."""
        return self not in (DatasetKind.TEMPORARY_VIEW, DatasetKind.PERSISTED_VIEW)


class Dataset(msgspec.Struct, frozen=True):
    """A vertex of the graph. ``name`` is qualified (``catalog.database.name``) but for temporary views and sinks.

    ``origin`` is the file and line that defines it, for people.
    """

    name: str
    kind: DatasetKind
    origin: str = ""


class Flow(msgspec.Struct, frozen=True):
    """A query that writes into ``target``. ``inputs`` are the datasets and external tables that it reads.

    ``conf`` is what the flow itself states (``spark_conf``, ``SET`` in SQL), without the project's configuration.
    ``once``: it runs on a full refresh only.
    """

    name: str
    target: str
    inputs: tuple[str, ...] = ()
    conf: dict[str, str] = msgspec.field(default_factory=dict)
    once: bool = False
    origin: str = ""


class JobGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline project as its own Python and Spark's own parser understand it.

    ``catalog`` and ``database`` complete names that users write short. ``configuration`` is the project's, for all
    flows.
    """

    name: str
    catalog: str
    database: str
    datasets: tuple[Dataset, ...]
    flows: tuple[Flow, ...]
    configuration: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_names(self)
        _check_flows(self)
        _check_cycles(self)

    def dataset(self, name: str) -> Dataset | None:
        """The dataset of this qualified name, or None: then it is a table that others provide."""
        return next((dataset for dataset in self.datasets if dataset.name == name), None)

    def find(self, name: str) -> Dataset:
        """The dataset that a user calls ``name``: qualified, or without the pipeline's own catalog and database.

        Raises :class:`GraphError`, with what there is.
        """
        for candidate in (name, f"{self.catalog}.{name}", f"{self.catalog}.{self.database}.{name}"):
            dataset = self.dataset(candidate)
            if dataset is not None:
                return dataset
        known = ", ".join(dataset.name for dataset in self.datasets)
        raise GraphError(f"the pipeline {self.name!r} has no dataset {name!r}; it has {known}")

    def flows_into(self, name: str) -> tuple[Flow, ...]:
        """The flows that write the dataset ``name``."""
        return tuple(flow for flow in self.flows if flow.target == name)

    @property
    def external_inputs(self) -> tuple[str, ...]:
        """What flows read and no flow writes, in the order of their names: tables that must be there already."""
        own = {dataset.name for dataset in self.datasets}
        return tuple(sorted({name for flow in self.flows for name in flow.inputs} - own))


def decode_graph(text: bytes) -> JobGraph:
    """The graph that :mod:`slotwise.spark.pipeline_graph` has captured, checked. Raises :class:`GraphError`."""
    try:
        return msgspec.json.decode(text, type=JobGraph)
    except msgspec.DecodeError as error:  # what a ValidationError is too
        raise GraphError(f"the captured graph cannot be understood: {error}") from error


def _check_names(graph: JobGraph) -> None:
    seen: dict[str, Dataset] = {}
    for dataset in graph.datasets:
        if dataset.name in seen:
            raise GraphError(
                f"two datasets are called {dataset.name}{_where((seen[dataset.name].origin, dataset.origin))}"
            )
        seen[dataset.name] = dataset
    if not any(dataset.kind.is_stored for dataset in graph.datasets):
        raise GraphError(f"the pipeline {graph.name!r} stores nothing: it has no table, materialized view or sink")


def _check_flows(graph: JobGraph) -> None:
    names: dict[str, Flow] = {}
    for flow in graph.flows:
        if flow.name in names:
            raise GraphError(f"two flows are called {flow.name}{_where((names[flow.name].origin, flow.origin))}")
        names[flow.name] = flow
        target = graph.dataset(flow.target)
        if target is None:
            raise GraphError(f"flow {flow.name} writes to {flow.target}, which nothing defines{_where((flow.origin,))}")
        for name in flow.inputs:
            read = graph.dataset(name)
            if read is not None and read.kind is DatasetKind.SINK:
                raise GraphError(f"flow {flow.name} reads {name}, which is a sink{_where((flow.origin,))}")
    for dataset in graph.datasets:
        flows = graph.flows_into(dataset.name)
        if len(flows) > 1 and dataset.kind not in (DatasetKind.STREAMING_TABLE, DatasetKind.SINK):
            raise GraphError(
                f"{dataset.name} is written by {len(flows)} flows ({', '.join(flow.name for flow in flows)}), but only "
                f"a streaming table or a sink can have more than one{_where(flow.origin for flow in flows)}"
            )
        if not flows:
            raise GraphError(f"no flow writes to {dataset.name}{_where((dataset.origin,))}")


def _check_cycles(graph: JobGraph) -> None:
    edges = {dataset.name: reads_of(graph, dataset.name) for dataset in graph.datasets}
    cycle = find_cycle(edges)
    if cycle is not None:
        raise GraphError(f"the datasets read each other in a circle: {' → '.join(cycle)}")


def reads_of(graph: JobGraph, name: str) -> tuple[str, ...]:
    """The pipeline's own datasets that the flows into ``name`` read, each once, in their order."""
    own = {dataset.name for dataset in graph.datasets}
    return tuple(dict.fromkeys(read for flow in graph.flows_into(name) for read in flow.inputs if read in own))


def find_cycle(edges: Mapping[str, Iterable[str]]) -> list[str] | None:
    """A circle along ``edges`` (from each name to those that it reads), first name again at the end; None if none.

    The names are told in the direction of the data: each is read by the next.
    """
    done: set[str] = set()
    for root in edges:
        path: list[str] = []
        # A stack of its own: a pipeline may be deeper than Python's recursion.
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                done.add(name)
            elif name in path:
                return [*path[path.index(name) :], name][::-1]
            elif name not in done:
                path.append(name)
                stack.append((name, True))
                stack.extend((read, False) for read in edges.get(name, ()))
    return None


def _where(origins: Iterable[str]) -> str:
    known = [origin for origin in origins if origin]
    return f" ({', '.join(known)})" if known else ""
