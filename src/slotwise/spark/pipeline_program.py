"""Runs the regions of a Spark Declarative Pipelines project: the program of a pipeline job's driver.

``runner.py`` starts it like any PySpark program, with the path of the project's specification file as its argument, in
the job's own interpreter (any Python from 3.9 on that has pyspark with pipelines); it imports nothing of Slotwise. It
has the driver's JVM serve Spark Connect (loopback only, with a token of its own), sends the project's graph, and then
does what it is told. Each region is one run of Spark's own pipeline engine that refreshes the region's datasets alone,
in a session whose configuration names the region, which keeps its tasks on the region's executors.

The program says what it knows and hears what it is to do through the driver's JVM, which passes it on to the job's
JobMaster; ``slotwise.model.pipeline`` has the shapes (:class:`Line`). Standard output is the project's.

Exit codes: 0 when it was told that all is done, 1 if there is no usable graph, 143 after SIGTERM.
"""

import sys

# Python, or runner.py, has put this script's folder in front of the path; its modules must not hide anybody's.
if sys.path and sys.path[0] == __file__.rpartition("/")[0]:
    del sys.path[0]

import contextlib
import importlib
import importlib.util
import json
import os
import re
import secrets
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

# The syntax of 3.9: this file is not run by Slotwise's own interpreter.
# ruff: noqa: UP045

REGION = "spark.slotwise.region"
_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"
_CONTROL = "org.apache.spark.scheduler.cluster.slotwise.PipelineControl$"
# Names the materialized view that a session replaces as a whole; Outputs.scala says how.
_REPLACE = "spark.slotwise.replace"
_EXTENSIONS = "org.apache.spark.scheduler.cluster.slotwise.OutputExtensions"
_COMMIT_KEY = "spark.sql.sources.commitProtocolClass"
_COMMIT = "org.apache.spark.scheduler.cluster.slotwise.ReplacingCommitProtocol"
_FLOW_EVENT = re.compile(r"Flow '?(?P<flow>\S+?)'? (?:is|has) (?P<state>[A-Z]+)")
_UNRESOLVED = re.compile(r"Failed to resolve flow: '(?P<flow>[^']+)'\.\s*Error: (?P<error>.*)", re.DOTALL)
# What follows these is for Spark's developers.
_NOISE = ("\n\nJVM stacktrace:", "\n=== Streaming Query ===", ";\n'")
_CLOSE_TIMEOUT_S = 10.0
_LISTEN_S = 1.0
_LONGEST_REASON = 4000


def main(argv: list[str]) -> int:
    """Serve the project whose specification file is ``argv[1]``; returns the process's exit code."""
    from py4j.protocol import Py4JNetworkError

    try:
        return _serve(Path(argv[1]).resolve())
    except (OSError, Py4JNetworkError) as error:
        # At once: what still talks to Spark on other threads would try again for minutes.
        print(f"the driver's JVM is gone: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _serve(spec_path: Path) -> int:
    line = Line()
    with connect_server() as (jvm, session, url):
        line.connect(jvm)
        try:
            project = Project(spec_path, jvm, url)
            tables = _sibling("pipeline_tables").TableMemory(jvm, session, project.spec.storage)
            tables.restore()
        except (Exception, SystemExit) as error:
            reason = reason_of(error, spec_path.parent)
            print(reason, file=sys.stderr)
            line.say(failed=reason)
            return 1
        line.say(graph=project.text)
        Regions(project, tables, line).serve()
    return 0


class Line:
    """What this program says to its JobMaster, and hears from it, through the driver's JVM.

    Both are whole states: what is said replaces what was said before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: Any = None
        self._said: dict[str, Any] = {}
        self._seen = 0

    def connect(self, jvm: Any) -> None:
        """There is a Spark application: what is said can be heard."""
        self._control = getattr(getattr(jvm, _CONTROL), "MODULE$")

    def say(self, **changes: Any) -> None:
        """Say this too from now on; None takes a word back."""
        with self._lock:
            self._said.update(changes)
            text = json.dumps({key: value for key, value in self._said.items() if value is not None})
            self._control.say(text)

    def listen(self, timeout_s: float) -> Optional[dict[str, Any]]:
        """What is to be done from now on, once something new is; None if there is nothing new in time."""
        number, _, text = str(self._control.listen(self._seen, int(timeout_s * 1000))).partition(" ")
        if not text:
            return None
        self._seen = int(number)
        directives: dict[str, Any] = json.loads(text)
        return directives

    def cancel(self, region: str) -> None:
        """End the Spark jobs of a region."""
        self._control.cancel(region)


@contextlib.contextmanager
def connect_server() -> Iterator[tuple[Any, Any, str]]:
    """A Spark Connect server in the JVM that runner.py has attached us to; gives the JVM, its session, and the server's
    address.
    """
    # Has pyspark's functions build plans for Spark Connect.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    from pyspark.java_gateway import launch_gateway

    token = secrets.token_hex(32)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": token,
        "spark.sql.connect.serverStacktrace.enabled": "false",
    }
    gateway: Any = launch_gateway  # pyspark has no types for it
    jvm = gateway().jvm
    others = jvm.org.apache.spark.SparkConf().get("spark.sql.extensions", "")
    settings["spark.sql.extensions"] = f"{others},{_EXTENSIONS}" if others else _EXTENSIONS
    builder = jvm.org.apache.spark.sql.classic.SparkSession.builder()
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        service = getattr(getattr(jvm, _SERVICE), "MODULE$")
        service.start(session.sparkContext())
        # By name: to an address without TLS the client would not send the token.
        yield jvm, session, f"sc://localhost:{service.localPort()}/;token={token}"
    finally:
        session.stop()


class Project:
    """A pipeline project: reads its definitions into sessions of the server at ``url``."""

    def __init__(self, spec_path: Path, jvm: Any, url: str) -> None:
        self._cli: Any = importlib.import_module("pyspark.pipelines.cli")
        self._capture = _sibling("pipeline_graph")
        self._path = spec_path
        self.spec = self._cli.load_pipeline_spec(spec_path)
        self._jvm = jvm
        self._url = url
        # Reading definitions changes the working directory and Spark's own classes, for the whole process.
        self._reading = threading.Lock()
        session, _, registry = self.read({})
        try:
            self.graph: dict[str, Any] = registry.graph(self.spec.name, self.spec.configuration)
            self.parts: dict[str, list[str]] = registry.parts
        finally:
            session.stop()
        self._be_quiet()

    def _be_quiet(self) -> None:
        """What it says of the reading is of interest once, not for every region."""
        self._cli.log_with_curr_timestamp = lambda _message: None

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self._path.parent

    @property
    def text(self) -> str:
        """The graph as the JobMaster takes it."""
        return json.dumps(self.graph)

    def read(self, conf: dict[str, str], only: Optional[set[str]] = None) -> tuple[Any, str, Any]:
        """A session of its own, the id of an empty graph on the server, and a registry that has read the project's
        definitions, of the datasets in ``only`` where it is given, and sends them to that graph.
        """
        from pyspark.sql import SparkSession

        with self._reading:
            session = SparkSession.builder.remote(self._url).create()
            try:
                configuration = self._capture.without_sizes(self.spec.configuration)
                for key, value in {**configuration, **conf}.items():
                    _set(session, key, value)
                catalog = self.spec.catalog or session.catalog.currentCatalog()
                database = self.spec.database or session.catalog.currentDatabase()
                graph_id = self._cli.create_dataflow_graph(
                    session,
                    default_catalog=self.spec.catalog,
                    default_database=self.spec.database,
                    sql_conf=configuration,
                )
                registry = self._capture.CapturingRegistry(
                    session, graph_id, self._jvm, self.root, catalog, database, only
                )
                self._cli.register_definitions(self._path, registry, self.spec, session, graph_id)
            except BaseException:
                session.stop()
                raise
            return session, graph_id, registry

    def events(self, session: Any, graph_id: str, **options: Any) -> Iterator[str]:
        """Start the run, and give what Spark says of it until it has ended. Raises what made it fail."""
        selection = {"full_refresh": [], "full_refresh_all": False, "refresh": [], "dry": False, **options}
        unresolved: list[str] = []
        try:
            for result in self._cli.start_run(session, graph_id, storage=self.spec.storage, **selection):
                if "pipeline_event_result" in result:
                    message = result["pipeline_event_result"].event.message
                    found = _UNRESOLVED.match(message)
                    if found is not None:
                        unresolved.append(f"{found['flow']}: {_clean(found['error'])}")
                    yield message
        except Exception as error:
            if unresolved:
                # Spark's exception refers to what it has said before.
                raise UnresolvedFlows("\n".join(unresolved)) from error
            raise

    def replacing(self, name: str) -> dict[str, str]:
        """The configuration in which a region replaces what was there as a whole; none if it is no materialized view,
        or if somebody has said how files are to be committed.
        """
        kinds = {dataset["name"]: dataset["kind"] for dataset in self.graph["datasets"]}
        stated = _COMMIT_KEY in self.spec.configuration or self._jvm.org.apache.spark.SparkConf().contains(_COMMIT_KEY)
        if stated or kinds[name] != "materialized_view":
            return {}
        return {_REPLACE: quoted(self.parts[name]), _COMMIT_KEY: _COMMIT}

    def sink_closure(self, names: list[str]) -> Optional[set[str]]:
        """The sinks among ``names`` with the views behind them; None if there is no sink."""
        kinds = {dataset["name"]: dataset["kind"] for dataset in self.graph["datasets"]}
        pending = [name for name in names if kinds.get(name) == "sink"]
        found: set[str] = set()
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                reads = [read for flow in self.graph["flows"] if flow["target"] == name for read in flow["inputs"]]
                pending += [read for read in reads if kinds.get(read) in ("temporary_view", "persisted_view")]
        return found or None


class UnresolvedFlows(Exception):
    """Queries of the project that Spark cannot make sense of; the text has one a line."""


class Regions:
    """Runs the regions that it is told to run, side by side, each on a thread of its own."""

    def __init__(self, project: Project, tables: Any, line: Line) -> None:
        self._project = project
        self._tables = tables
        self._line = line
        self._lock = threading.Lock()
        # The latest run of each region, as it is told.
        self._statuses: dict[str, dict[str, Any]] = {}
        # By region: the session of the run that is under way, once there is one.
        self._running: dict[str, Optional[Any]] = {}
        self._checking = False

    def serve(self) -> None:
        """Until it is over; then whatever still runs is cancelled."""
        while True:
            directives = self._line.listen(_LISTEN_S)
            if directives is None:
                continue
            if directives["stop"]:
                break
            self._follow(directives)
        for region in list(self._running):
            self._cancel(region)

    def _follow(self, directives: dict[str, Any]) -> None:
        # A new leader of the job asks for it again.
        self._line.say(graph=None if directives["graph_known"] else self._project.text)
        if not directives["graph_known"]:
            return
        wanted = {run["region"]: run for run in directives["runs"]}
        with self._lock:
            running = list(self._running)
        for region in running:
            if region not in wanted or wanted[region]["attempt"] != self._statuses[region]["attempt"]:
                self._cancel(region)
        for region, run in wanted.items():
            if self._statuses.get(region, {}).get("attempt", 0) < run["attempt"]:
                self._start(run)
        if directives["check"] and not self._checking:
            self._checking = True
            threading.Thread(target=self._dry_run, daemon=True).start()

    def _start(self, run: dict[str, Any]) -> None:
        region = run["region"]
        with self._lock:
            self._running[region] = None
            self._statuses[region] = {"region": region, "attempt": run["attempt"], "state": "RUNNING", "flows": {}}
        self._tell()
        threading.Thread(target=self._run, args=(run,), daemon=True).start()

    def _cancel(self, region: str) -> None:
        with self._lock:
            if region not in self._running:
                return
            session = self._running.pop(region)
            attempt = self._statuses[region]["attempt"]
        if session is not None:
            # Closing stops the run, but waits for its jobs; a run that is not stopped begins anew what was cancelled.
            closing = threading.Thread(target=_close, args=(session,), daemon=True)
            closing.start()
            self._line.cancel(region)
            closing.join(_CLOSE_TIMEOUT_S)
            self._line.cancel(region)
        # Its thread may wait for ever for an answer in the session that is gone.
        self._change(region, attempt, state="CANCELED")

    def _run(self, run: dict[str, Any]) -> None:
        region, attempt = run["region"], run["attempt"]
        session = None
        try:
            if region not in self._project.parts:
                raise ValueError(f"the pipeline has no dataset {region}")
            parts = self._project.parts[region]
            full = bool(run["full_refresh"]) | self._tables.begin(parts)
            settings = {"spark.sql.adaptive.enabled": "true", **run["conf"], REGION: region}
            settings.update(self._project.replacing(region))
            # Spark's selection of datasets leaves out sinks: they are run as a graph of their own.
            only = self._project.sink_closure([region])
            session, graph_id, registry = self._project.read(settings, only)
            if not self._begin(region, attempt, session):
                return
            if only is not None:
                selection: dict[str, Any] = {"full_refresh_all": full}
            else:
                self._check_unchanged(registry)
                selection = {"full_refresh" if full else "refresh": [quoted(parts)]}
            registry.send()
            for message in self._project.events(session, graph_id, **selection):
                self._progress(region, attempt, message)
            if self._is_current(region, attempt):
                self._tables.finish(parts)
            self._end(region, attempt, state="FINISHED")
        except (Exception, SystemExit) as error:
            self._end(region, attempt, state="FAILED", reason=reason_of(error, self._project.root))
        finally:
            if session is not None:
                _close(session)

    def _is_current(self, region: str, attempt: int) -> bool:
        with self._lock:
            return region in self._running and self._statuses[region]["attempt"] == attempt

    def _begin(self, region: str, attempt: int, session: Any) -> bool:
        """False if it was cancelled before it had a session."""
        with self._lock:
            if region not in self._running or self._statuses[region]["attempt"] != attempt:
                return False
            self._running[region] = session
            return True

    def _end(self, region: str, attempt: int, **changes: str) -> None:
        with self._lock:
            if region not in self._running or self._statuses[region]["attempt"] != attempt:
                # Cancelled meanwhile, and told so; it may even run again.
                return
            del self._running[region]
        self._change(region, attempt, **changes)

    def _change(self, region: str, attempt: int, **changes: Any) -> None:
        with self._lock:
            if self._statuses[region]["attempt"] == attempt:
                self._statuses[region].update(changes)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            statuses = [{**status, "flows": dict(status["flows"])} for status in self._statuses.values()]
            self._line.say(regions=statuses)

    def _check_unchanged(self, registry: Any) -> None:
        spec = self._project.spec
        if registry.graph(spec.name, spec.configuration) != self._project.graph:
            raise ValueError("the project's definitions have changed since the job has started: submit it anew")

    def _progress(self, region: str, attempt: int, message: str) -> None:
        event = _FLOW_EVENT.match(message)
        if event is None or event["state"] == "EXCLUDED":
            return
        flow = event["flow"].replace("`", "")
        if event["state"] == "FAILED":
            print(f"{region}: {_clean(message)}", file=sys.stderr)
        with self._lock:
            status = self._statuses[region]
            if status["attempt"] == attempt:
                status["flows"][flow] = event["state"]
        self._tell()

    def _dry_run(self) -> None:
        try:
            session, graph_id, registry = self._project.read({})
            with contextlib.closing(_Closing(session)):
                registry.send()
                for _ in self._project.events(session, graph_id, dry=True):
                    pass
        except Exception as error:
            self._line.say(checked=reason_of(error, self._project.root))
        else:
            self._line.say(checked="")


def quoted(parts: list[str]) -> str:
    """A name as SQL takes it."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def _set(session: Any, key: str, value: str) -> None:
    try:
        session.conf.set(key, value)
    except Exception:
        # What cannot be changed in a running application was set at its start.
        if session.conf.get(key, None) != value:
            raise


class _Closing:
    def __init__(self, session: Any) -> None:
        self._session = session

    def close(self) -> None:
        _close(self._session)


def _close(session: Any) -> None:
    """End a session and all that runs in it. It may have ended already."""
    try:
        session.stop()
    except Exception as error:
        print(f"a session could not be closed: {_clean(str(error))}", file=sys.stderr)


def reason_of(error: BaseException, root: Path) -> str:
    """What went wrong, for people: Spark's own words, or the place in the project's files and what Python says."""
    from pyspark.errors import PySparkException

    if isinstance(error, (PySparkException, UnresolvedFlows)):
        return _clean(str(error))
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_absolute() and root in Path(frame.filename).parents]
    if inside:
        text = f"{os.path.relpath(inside[-1].filename, root)}:{inside[-1].lineno}: {text}"
    return _clean(text)


def _clean(text: str) -> str:
    for mark in _NOISE:
        text = text.partition(mark)[0]
    return text.strip()[:_LONGEST_REASON]


def _sibling(name: str) -> Any:
    """The module beside this file, under a name that hides nobody's."""
    path = Path(__file__).resolve().with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_slotwise_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: pipeline_program.py SPECIFICATION", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv))
