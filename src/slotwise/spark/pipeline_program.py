"""Runs the regions of a Spark Declarative Pipelines project: the program of a pipeline job's driver.

``runner.py`` starts it like any PySpark program, with the path of the project's specification file as its argument, in
the job's own interpreter (any Python from 3.9 on that has pyspark with pipelines); it imports nothing of Slotwise. It
has the driver's JVM serve Spark Connect (loopback only, with a token of its own), sends the project's graph, and then
does what it is told. Each region is one run of Spark's own pipeline engine that refreshes the region's datasets alone,
in a session whose configuration names the region, which keeps its tasks on the region's executors.

Commands and answers are JSON values, one a line, on standard input and output; what the project prints goes to standard
error. See ``docs/decisions/0015-pipelines.md`` for their shapes.

Exit codes: 0 after ``stop`` or the end of the commands, 1 if there is no usable graph, 143 after SIGTERM.
"""

import sys

# Python, or runner.py, has put this script's folder in front of the path; its modules must not hide anybody's.
if sys.path and sys.path[0] == __file__.rpartition("/")[0]:
    del sys.path[0]

import contextlib
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
_CONTROL = "org.apache.spark.scheduler.cluster.slotwise.RegionControl$"
_FLOW_EVENT = re.compile(r"Flow '?(?P<flow>\S+?)'? (?:is|has) (?P<state>[A-Z]+)")
_UNRESOLVED = re.compile(r"Failed to resolve flow: '(?P<flow>[^']+)'\.\s*Error: (?P<error>.*)", re.DOTALL)
# What follows these is for Spark's developers.
_NOISE = ("\n\nJVM stacktrace:", "\n=== Streaming Query ===", ";\n'")
_CLOSE_TIMEOUT_S = 10.0
_LONGEST_REASON = 4000


def main(argv: list[str]) -> int:
    """Serve the project whose specification file is ``argv[1]``; returns the process's exit code."""
    answers = Answers()
    spec_path = Path(argv[1]).resolve()
    with connect_server() as (jvm, url):
        try:
            project = Project(spec_path, jvm, url)
        except Exception as error:
            answers.send({"failed": reason_of(error, spec_path.parent)})
            return 1
        answers.send({"graph": project.graph})
        Regions(project, answers).serve(sys.stdin)
    answers.send({"stopped": True})
    return 0


class Answers:
    """Standard output, kept for answers: everything else that this process prints goes to standard error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, answer: dict[str, Any]) -> None:
        """One line."""
        with self._lock:
            self._out.write(json.dumps(answer) + "\n")
            self._out.flush()


@contextlib.contextmanager
def connect_server() -> Iterator[tuple[Any, str]]:
    """A Spark Connect server in the JVM that runner.py has attached us to; gives the JVM and the server's address."""
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
    builder = jvm.org.apache.spark.sql.classic.SparkSession.builder()
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        service = getattr(getattr(jvm, _SERVICE), "MODULE$")
        service.start(session.sparkContext())
        # By name: to an address without TLS the client would not send the token.
        yield jvm, f"sc://localhost:{service.localPort()}/;token={token}"
    finally:
        session.stop()


class Project:
    """A pipeline project: reads its definitions into sessions of the server at ``url``."""

    def __init__(self, spec_path: Path, jvm: Any, url: str) -> None:
        from pyspark.pipelines import cli

        self._cli: Any = cli
        self._capture = _sibling("pipeline_graph")
        self._path = spec_path
        self.spec = cli.load_pipeline_spec(spec_path)
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

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self._path.parent

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
                    session.conf.set(key, value)
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

    def cancel_tasks(self, region: str) -> None:
        """End the Spark jobs of a region."""
        getattr(getattr(self._jvm, _CONTROL), "MODULE$").cancel(region)

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
    """Carries out commands: regions side by side, each on a thread of its own."""

    def __init__(self, project: Project, answers: Answers) -> None:
        self._project = project
        self._answers = answers
        self._lock = threading.Lock()
        # By region: its session once there is one. Regions leave with their last answer.
        self._running: dict[str, Optional[Any]] = {}
        self._cancelled: set[str] = set()

    def serve(self, commands: Iterator[str]) -> None:
        """Until ``stop`` or the end of ``commands``; then whatever still runs is cancelled."""
        for line in commands:
            try:
                command = json.loads(line)
                if command.get("stop"):
                    break
                self._carry_out(command)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._answers.send({"refused": f"{type(error).__name__}: {error}", "command": line.strip()})
        with self._lock:
            left = list(self._running)
        for region in left:
            self._cancel(region)

    def _carry_out(self, command: dict[str, Any]) -> None:
        if "run" in command:
            region = command["run"]
            names = [self._known(name) for name in command["datasets"]]
            with self._lock:
                if region in self._running:
                    raise ValueError(f"region {region} is running")
                self._running[region] = None
                self._cancelled.discard(region)
            full, conf = bool(command.get("full_refresh")), dict(command.get("conf", {}))
            threading.Thread(target=self._run, args=(region, names, full, conf), daemon=True).start()
        elif "cancel" in command:
            self._cancel(command["cancel"])
        elif "dry_run" in command:
            threading.Thread(target=self._dry_run, daemon=True).start()
        else:
            raise ValueError("there is no such command")

    def _known(self, name: str) -> str:
        if name not in self._project.parts:
            raise ValueError(f"the pipeline has no dataset {name}")
        return name

    def _cancel(self, region: str) -> None:
        with self._lock:
            if region not in self._running:
                return
            self._cancelled.add(region)
            session = self._running[region]
        if session is not None:
            # Closing stops the run, but waits for its jobs; a run that is not stopped begins anew what was cancelled.
            closing = threading.Thread(target=_close, args=(session,), daemon=True)
            closing.start()
            self._project.cancel_tasks(region)
            closing.join(_CLOSE_TIMEOUT_S)
            self._project.cancel_tasks(region)
            # Its thread may wait for ever for an answer in the session that is gone.
            self._end(region, session, "cancelled")

    def _run(self, region: str, names: list[str], full: bool, conf: dict[str, str]) -> None:
        self._tell(region, "started")
        session = None
        try:
            settings = {"spark.sql.adaptive.enabled": "true", **conf, REGION: region}
            # Spark's selection of datasets leaves out sinks: they are run as a graph of their own.
            only = self._project.sink_closure(names)
            session, graph_id, registry = self._project.read(settings, only)
            self._begin(region, session)
            if only is not None:
                selection: dict[str, Any] = {"full_refresh_all": full}
            else:
                self._check_unchanged(registry)
                selection = {"full_refresh" if full else "refresh": [self._quoted(name) for name in names]}
            registry.send()
            for message in self._project.events(session, graph_id, **selection):
                self._progress(region, message)
            self._end(region, session, "finished")
        except Exception as error:
            self._end(region, session, "failed", reason_of(error, self._project.root))
        finally:
            if session is not None:
                _close(session)

    def _begin(self, region: str, session: Any) -> None:
        with self._lock:
            self._running[region] = session
            if region in self._cancelled:
                raise RuntimeError("cancelled before it had begun")

    def _end(self, region: str, session: Optional[Any], state: str, reason: str = "") -> None:
        with self._lock:
            if region not in self._running or self._running[region] is not session:
                # Cancelled meanwhile, and told so; it may even run again.
                return
            del self._running[region]
            cancelled = region in self._cancelled and state != "finished"
        self._tell(region, "cancelled" if cancelled else state, **({"reason": reason} if reason else {}))

    def _check_unchanged(self, registry: Any) -> None:
        spec = self._project.spec
        if registry.graph(spec.name, spec.configuration) != self._project.graph:
            raise ValueError("the project's definitions have changed since the job has started: submit it anew")

    def _quoted(self, name: str) -> str:
        return ".".join("`" + part.replace("`", "``") + "`" for part in self._project.parts[name])

    def _progress(self, region: str, message: str) -> None:
        event = _FLOW_EVENT.match(message)
        if event is not None and event["state"] != "EXCLUDED":
            flow = event["flow"].replace("`", "")
            self._tell(region, "progress", flow=flow, flow_state=event["state"], message=_clean(message))

    def _tell(self, region: str, state: str, **more: str) -> None:
        self._answers.send({"region": region, "state": state, **more})

    def _dry_run(self) -> None:
        try:
            session, graph_id, registry = self._project.read({})
            with contextlib.closing(_Closing(session)):
                registry.send()
                for _ in self._project.events(session, graph_id, dry=True):
                    pass
        except Exception as error:
            self._answers.send({"dry_run": "failed", "reason": reason_of(error, self._project.root)})
        else:
            self._answers.send({"dry_run": "finished"})


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
