"""Captures the graph of a pipeline project in the course of Spark's own registration (design, 'Job kinds').

Loaded by ``pipeline_program.py`` in the job's own interpreter, which may be any Python from 3.9 on that has pyspark
with pipelines; it therefore imports nothing of Slotwise. Nothing is analysed here: what a flow reads is taken from its
plan as the user wrote it, for analysing may read files, and that needs executors, which only the graph can ask for. SQL
is parsed by Spark itself in the driver's JVM: it is the same grammar, and no other parser is needed.

:meth:`CapturingRegistry.graph` has the shape of ``slotwise.model.job_graph.JobGraph``.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, TemporaryView
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry

if TYPE_CHECKING:
    # Spark 4.1 has no such flows.
    from pyspark.pipelines.flow import AutoCdcFlow

# The syntax of 3.9: this file is not run by Slotwise's own interpreter.
# ruff: noqa: UP045, B905

_KINDS = (
    (MaterializedView, "materialized_view"),
    (StreamingTable, "streaming_table"),
    (TemporaryView, "temporary_view"),
    (Sink, "sink"),
)
_SAID_TO_SLOTWISE = ("spark.executor.", "spark.task.cpus", "slotwise.")
_PLAIN = ("temporary_view", "sink")
_SPLITTER = "org.apache.spark.sql.pipelines.graph.SqlGraphRegistrationContext$"
_NAMES = "org.apache.spark.scheduler.cluster.slotwise.SqlNames$"


class CapturingRegistry(SparkConnectGraphElementRegistry):
    """Remembers a project's elements, and registers them with Spark when :meth:`send` is called.

    The two are apart because Spark looks into the files that a flow reads as soon as it gets the flow, with tasks that
    may have to wait for executors; reading definitions changes the whole process, and nobody may wait meanwhile.

    ``jvm`` is the gateway's view of the driver's JVM. ``catalog`` and ``database`` complete short names. With ``only``
    everything but these datasets, and the flows into them, is left out. ``parts`` has the parts of datasets' names.
    """

    def __init__(
        self,
        spark: Any,
        graph_id: str,
        jvm: Any,
        root: Path,
        catalog: str,
        database: str,
        only: Optional[set[str]] = None,
    ) -> None:
        super().__init__(spark, graph_id)
        self._jvm = jvm
        self._session = jvm.org.apache.spark.sql.classic.SparkSession.active()
        self._names = _scala_object(jvm, _NAMES)
        self._root = root
        self._catalog = catalog
        self._database = database
        self._only = only
        self._unsent: list[Callable[[], None]] = []
        self.parts: dict[str, list[str]] = {}
        self._datasets: dict[str, dict[str, Any]] = {}
        self._flows: list[dict[str, Any]] = []
        # What names mean is known at the end only: a view may be defined after the flows that read it.
        self._unqualified: list[_Scope] = []

    # ---- what pyspark calls ----

    def register_output(self, output: Output) -> None:
        """A dataset of a Python file."""
        kind = next(name for kind, name in _KINDS if isinstance(output, kind))
        parts = self._parts(output.name)
        if self._wanted(parts, kind, self._here()):
            self._unsent.append(partial(super().register_output, output))
            self._add_dataset(parts, kind, self._here(), self._origin(output.source_code_location))

    def register_flow(self, flow: Flow) -> None:
        """A flow of a Python file; its function is called once, as Spark's own command line does."""
        if not self._wanted_target(self._parts(flow.target), self._here()):
            return
        with add_pipeline_analysis_context(
            spark=self._spark, dataflow_graph_id=self._dataflow_graph_id, flow_name=flow.name
        ):
            frame: Any = flow.func()
        self._unsent.append(
            partial(
                super().register_flow,
                dataclasses.replace(flow, func=lambda: frame, spark_conf=without_sizes(flow.spark_conf)),
            )
        )
        inputs = self._inputs_of(frame._plan.plan(self._client))
        self._add_flow(flow.name, flow.target, inputs, flow, self._origin(flow.source_code_location))

    def register_auto_cdc_flow(self, flow: "AutoCdcFlow") -> None:
        """A flow of change data into a streaming table."""
        if not self._wanted_target(self._parts(flow.target), self._here()):
            return
        self._unsent.append(
            partial(
                super().register_auto_cdc_flow, dataclasses.replace(flow, spark_conf=without_sizes(flow.spark_conf))
            )
        )
        name = flow.name or flow.target
        self._add_flow(name, flow.target, [self._parts(flow.source)], flow, self._origin(flow.source_code_location))

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        """A file of SQL statements."""
        statements = _scala_object(self._jvm, _SPLITTER).splitSqlFileIntoQueries(
            self._session, sql_text, str(file_path)
        )
        scope = self._here()
        conf: dict[str, str] = {}
        text = sql_text
        used = False
        for statement in _listed(statements):
            origin = statement.queryOrigin()
            plan = statement.plan()
            before = len(self._datasets) + len(self._flows)
            scope = self._statement(plan, scope, conf, f"{file_path}:{origin.line().get()}")
            defines = len(self._datasets) + len(self._flows) > before
            used = used or defines
            kind = plan.getClass().getSimpleName()
            sets_size = kind == "SetCommand" and not without_sizes({plan.kv().get()._1(): ""})
            if sets_size or not (defines or kind.startswith("Set")):
                text = _blanked(text, origin.startPosition().get(), len(origin.sqlText().get()))
        if used:
            self._unsent.append(partial(super().register_sql, text, file_path))

    def send(self) -> None:
        """Register all of it with Spark. Raises what Spark has against it."""
        for register in self._unsent:
            register()

    # ---- SQL ----

    def _statement(self, plan: Any, scope: "_Scope", conf: dict[str, str], origin: str) -> "_Scope":
        """Remember one statement; returns the scope of those after it. ``conf`` gathers what SET says."""
        kind = plan.getClass().getSimpleName()
        if kind == "SetCommand":
            pair = plan.kv().get()
            conf[pair._1()] = pair._2().get()
        elif kind == "SetNamespaceCommand":
            parts = _listed(plan.namespace())
            return _Scope(parts[0] if len(parts) > 1 else scope.catalog, parts[-1])
        elif kind == "SetCatalogCommand":
            return _Scope(str(plan.productElement(0)), None)
        elif kind in ("CreateMaterializedViewAsSelect", "CreateStreamingTableAsSelect"):
            stored = "materialized_view" if kind == "CreateMaterializedViewAsSelect" else "streaming_table"
            self._sql_dataset(_listed(plan.name().nameParts()), stored, scope, conf, origin, plan.query())
        elif kind == "CreateStreamingTable":
            self._sql_dataset(_listed(plan.name().nameParts()), "streaming_table", scope, conf, origin, None)
        elif kind == "CreateStreamingTableAutoCdc":
            self._sql_dataset(_listed(plan.name().nameParts()), "streaming_table", scope, conf, origin, plan.source())
        elif kind == "CreateViewCommand":
            self._sql_dataset([plan.name().table()], "temporary_view", scope, conf, origin, plan.plan())
        elif kind == "CreateView":
            self._sql_dataset(_listed(plan.child().nameParts()), "persisted_view", scope, conf, origin, plan.query())
        elif kind == "CreateFlowCommand":
            operation = plan.flowOperation()
            # INSERT INTO … or AUTO CDC INTO …
            plain = operation.getClass().getSimpleName() == "InsertIntoStatement"
            target, query = (operation.table, operation.query) if plain else (operation.targetTable, operation.source)
            parts = _listed(target().multipartIdentifier())
            if self._wanted_target(parts, scope):
                self._sql_flow(_listed(plan.name().nameParts()), parts, scope, conf, origin, query())
        else:
            raise ValueError(f"{origin}: {kind} cannot be used in the SQL of a pipeline")
        return scope

    def _sql_dataset(
        self, name: list[str], kind: str, scope: "_Scope", conf: dict[str, str], origin: str, query: Optional[Any]
    ) -> None:
        if self._wanted(name, kind, scope):
            self._add_dataset(name, kind, scope, origin)
            if query is not None:
                self._sql_flow(name, name, scope, conf, origin, query)

    def _sql_flow(
        self, name: list[str], target: list[str], scope: "_Scope", conf: dict[str, str], origin: str, query: Any
    ) -> None:
        inputs = json.loads(self._names.ofPlan(query))
        self._unqualified.append(scope)
        self._flows.append(
            {"name": name, "target": target, "inputs": inputs, "conf": dict(conf), "once": False, "origin": origin}
        )

    # ---- Python ----

    def _inputs_of(self, plan: Any) -> list[list[str]]:
        """The names in a plan of Spark Connect's, wherever they stand: tables, and SQL inside of the plan."""
        found: dict[str, None] = {}
        pending = [plan]
        # A stack of its own: plans may be deeper than Python's recursion.
        while pending:
            message = pending.pop()
            kind = message.DESCRIPTOR.full_name
            if kind == "spark.connect.Read.NamedTable":
                found.update(dict.fromkeys(self._query_names(f"TABLE {message.unparsed_identifier}")))
                continue
            if kind == "spark.connect.SQL":
                found.update(dict.fromkeys(self._query_names(message.query)))
            elif kind == "spark.connect.Expression.ExpressionString":
                found.update(dict.fromkeys(_texts(self._names.ofExpression(message.expression))))
            for field, value in reversed(message.ListFields()):
                if field.type != field.TYPE_MESSAGE or field.message_type.full_name == "google.protobuf.Any":
                    continue
                if hasattr(value, "DESCRIPTOR"):
                    pending.append(value)
                else:
                    values = value.values() if hasattr(value, "values") else value
                    pending.extend(entry for entry in reversed(list(values)) if hasattr(entry, "DESCRIPTOR"))
        return [json.loads(text) for text in found]

    def _query_names(self, query: str) -> list[str]:
        return _texts(self._names.ofQuery(query))

    # ---- names ----

    def graph(self, name: str, configuration: dict[str, str]) -> dict[str, Any]:
        """All that was registered, with qualified names."""
        flows = []
        for flow, scope in zip(self._flows, self._unqualified):
            qualified = {
                "name": self._qualified(flow["name"], scope),
                "target": self._qualified(flow["target"], scope),
                "inputs": list(dict.fromkeys(self._qualified(parts, scope) for parts in flow["inputs"])),
            }
            flows.append({**flow, **qualified})
        return {
            "name": name,
            "catalog": self._catalog,
            "database": self._database,
            "configuration": dict(configuration),
            "datasets": list(self._datasets.values()),
            "flows": flows,
        }

    def _add_dataset(self, parts: list[str], kind: str, scope: "_Scope", origin: str) -> None:
        complete = self._complete(parts, kind, scope)
        name = ".".join(complete)
        self.parts[name] = complete
        self._datasets[name] = {"name": name, "kind": kind, "origin": origin}

    def _complete(self, parts: list[str], kind: str, scope: "_Scope") -> list[str]:
        return parts if kind in _PLAIN else scope.complete(parts, self._database)

    def _wanted(self, parts: list[str], kind: str, scope: "_Scope") -> bool:
        return self._only is None or ".".join(self._complete(parts, kind, scope)) in self._only

    def _wanted_target(self, parts: list[str], scope: "_Scope") -> bool:
        """The same for a flow's target, of which the kind is not known yet."""
        return self._wanted(parts, "sink", scope) or self._wanted(parts, "streaming_table", scope)

    def _add_flow(self, name: str, target: str, inputs: list[list[str]], flow: Any, origin: str) -> None:
        self._unqualified.append(self._here())
        self._flows.append(
            {
                "name": self._parts(name),
                "target": self._parts(target),
                "inputs": inputs,
                "conf": dict(flow.spark_conf),
                "once": bool(getattr(flow, "once", False)),
                "origin": origin,
            }
        )

    def _qualified(self, parts: list[str], scope: "_Scope") -> str:
        plain = self._datasets.get(parts[0]) if len(parts) == 1 else None
        if plain is not None and plain["kind"] in _PLAIN:
            return parts[0]
        return ".".join(scope.complete(parts, self._database))

    def _parts(self, name: str) -> list[str]:
        (parts,) = (json.loads(text) for text in self._query_names(f"TABLE {name}"))
        return list(parts)

    def _here(self) -> "_Scope":
        return _Scope(self._catalog, self._database)

    def _origin(self, location: Any) -> str:
        return f"{os.path.relpath(location.filename, self._root)}:{location.line_number}"


@dataclasses.dataclass(frozen=True)
class _Scope:
    """The catalog and database that complete short names at some place."""

    catalog: str
    database: Optional[str]

    def complete(self, parts: list[str], fallback: str) -> list[str]:
        if len(parts) == 1:
            parts = [self.database or fallback, *parts]
        if len(parts) == 2:
            parts = [self.catalog, *parts]
        return parts


def without_sizes(conf: Mapping[str, str]) -> dict[str, str]:
    """``conf`` without what is said to Slotwise alone.

    Spark would refuse it: an application's executors are no setting of a query, and one key may not be set for a view
    and for what reads it.
    """
    return {key: value for key, value in conf.items() if not key.startswith(_SAID_TO_SLOTWISE)}


def _blanked(text: str, start: int, length: int) -> str:
    """``text`` without the statement there, and its semicolon; every other one keeps its line."""
    end = start + length
    end = text.find(";", end) + 1 or len(text)
    return text[:start] + "".join(char if char == "\n" else " " for char in text[start:end]) + text[end:]


def _texts(names: str) -> list[str]:
    """Each of the lists in a JSON list, as a text again: something that can be a key."""
    return [json.dumps(parts) for parts in json.loads(names)]


def _listed(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def _scala_object(jvm: Any, name: str) -> Any:
    return getattr(getattr(jvm, name), "MODULE$")
