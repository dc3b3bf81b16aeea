"""Runs a job's program as ``python program.py`` would, attached to the driver's JVM.

Started as a plain script by the job's interpreter, which may be any Python from 3.9 on that has pyspark; it therefore
imports nothing of Slotwise. While the JVM starts it imports pyspark. The environment says what to do:
``_PYSPARK_DRIVER_CONN_INFO_PATH`` (where the JVM writes its port and secret; without it the program just runs),
``SLOTWISE_JVM_PID``, ``SLOTWISE_JVM_TIMEOUT_S`` (default 120), ``SLOTWISE_PY_FILES`` (JSON list),
``SLOTWISE_PY_DIR`` (where single ``.py`` files of it are copied to).

``runner.py --wait PRACTICE FOLDER`` imports first and learns later what to run: it makes the file ``ready`` in the
folder, reads the pipe ``order`` (a JSON object: ``env``, the whole environment; ``cwd``; ``args``, what would follow
``runner.py``), and makes the file ``taken``. Before, unless PRACTICE is empty, it waits for that file of a JVM, and has
a child use it (see ``_practise``).

``runner.py --warm ROUNDS`` makes a SparkContext and a session, uses them a little, and waits for its program, of which
the JVM will hear (``WarmApplication``). A program that asks for a context with the same settings gets that one.

Exit codes: the program's own; 1 after an exception, 2 if the program cannot be read, 143 after SIGTERM.
"""

import sys

# Python has put this script's folder in front of the path; its modules must not hide anybody's.
if sys.path and sys.path[0] == __file__.rpartition("/")[0]:
    del sys.path[0]

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import threading
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn, Optional

# The syntax of 3.9: this file is not run by Slotwise's own interpreter.
# ruff: noqa: UP045

_SIGTERM_CODE = 143
_STOP_TIMEOUT_S = 15.0
_CONTEXTS_A_ROUND = 2
_READS = 3
_REHEARSALS = 3


def main(argv: "list[str]") -> int:
    """Run the program ``argv[1]`` with the arguments after it; returns the process's exit code."""
    if argv[1] == "--wait":
        argv = [argv[0], *_wait(argv[2], argv[3])]
    settings = {
        name: os.environ.pop(name, "")
        for name in (
            "_PYSPARK_DRIVER_CONN_INFO_PATH",
            "SLOTWISE_JVM_PID",
            "SLOTWISE_JVM_TIMEOUT_S",
            "SLOTWISE_PY_FILES",
            "SLOTWISE_PY_DIR",
        )
    }
    connection = settings["_PYSPARK_DRIVER_CONN_INFO_PATH"]

    def attach() -> None:
        if connection:
            _attach(connection, settings["SLOTWISE_JVM_PID"], float(settings["SLOTWISE_JVM_TIMEOUT_S"] or 120))
            _ask_for_settings_at_once()

    warm = argv[1] == "--warm"
    if warm:
        attach()
        argv = [argv[0], *_wait_in_context(int(argv[2]))]
    program = os.path.abspath(argv[1])
    signal.signal(signal.SIGTERM, _terminated)
    # Registered first, so that it runs last: after the program's own handlers and its threads.
    atexit.register(_stop_at_exit)
    try:
        code = _read_program(program)
        if isinstance(code, int):
            return code
        if not warm:
            attach()
        _set_up_path(program, json.loads(settings["SLOTWISE_PY_FILES"] or "[]"), settings["SLOTWISE_PY_DIR"])
        sys.argv = argv[1:]
        return _run(program, code)
    except SystemExit as exit_:
        # SIGTERM, or one of the refusals of this file.
        return _exit_code(exit_)


def _wait(practice: str, folder: str) -> "list[str]":
    """Import what drivers need, and wait for the order; returns its arguments."""
    _import_pyspark()
    if practice:
        _practise(practice)
    _settle()
    with open(os.path.join(folder, "ready"), "x"):
        pass
    with open(os.path.join(folder, "order"), "rb") as pipe:
        order = json.loads(pipe.read())
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    with open(os.path.join(folder, "taken"), "x"):
        pass
    args: list[str] = order["args"]
    return args


def _practise(practice: str) -> None:
    """Have the JVM that writes the file ``practice`` do what programs have it do. A child does it: connections, threads
    and modules end with it. If it fails, then programs find less prepared.
    """
    while not os.path.exists(practice):
        time.sleep(0.02)
    child = os.fork()
    if child == 0:
        try:
            _use(practice)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with open(practice + ".done", "x"):
        pass


def _use(practice: str) -> None:
    """Do a little work by the gateway of which ``practice`` tells."""
    with open(practice, "rb") as file:
        told = json.loads(file.read())
    os.environ.update(PYSPARK_GATEWAY_PORT=str(told["port"]), PYSPARK_GATEWAY_SECRET=told["secret"])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    path = practice + "-rows.parquet"
    contexts = [told["conf"]] * (_CONTEXTS_A_ROUND * told["rounds"]) + [told["cluster"]]
    for number, conf in enumerate(contexts):
        if number == len(contexts) - 1:
            _bridge("WarmJvm").tidy()
        spark = SparkSession.builder.config(map=conf).getOrCreate()
        if not number:
            spark.range(0, 4000, 1, 2).selectExpr("id % 7 as k", "id as v").write.parquet(path)
        rows = spark.read.parquet(path)
        rows.where(rows.v > number).groupBy("k").agg({"v": "sum", "k": "count"}).orderBy("k").collect()
        rows.createOrReplaceTempView("t")
        spark.sql(f"select k, sum(v + {number}) s from t group by k").limit(3).collect()
        if not number % _CONTEXTS_A_ROUND:
            _work_a_little(spark)
        spark.stop()
    shutil.rmtree(path, ignore_errors=True)


def _wait_in_context(rounds: int) -> "list[str]":
    """Make a context, and wait for the order, which may use it; returns its arguments. SIGTERM ends it at once."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    initialize = SparkContext._initialize_context

    def begin(_self: Any, conf: Any) -> Any:
        return _bridge("WarmApplication").begin(conf, rounds)

    def rehearse(_self: Any, conf: Any) -> Any:
        return control.rehearse(conf)

    def use(self: Any, conf: Any) -> Any:
        # Only once: any later context is the program's own.
        SparkContext._initialize_context = initialize  # type: ignore[method-assign]
        return control.take(conf) or initialize(self, conf)

    def forget() -> None:
        """As if there had been no context: the program makes its own objects, around the same one."""
        SparkContext._active_spark_context._accumulatorServer.shutdown()  # type: ignore[union-attr]
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None

    SparkContext._initialize_context = begin  # type: ignore[method-assign,assignment]
    spark = SparkSession.builder.getOrCreate()
    control = _bridge("WarmApplication")
    files = dict(_try(control.work, rounds) or {})
    _work_a_little(spark)
    SparkContext._initialize_context = rehearse  # type: ignore[method-assign,assignment]
    for number in range(_REHEARSALS):
        forget()
        spark = SparkSession.builder.getOrCreate()
        for read in range(_READS if files else 0):
            _try(_read, spark, files, number * _READS + read)
    SparkContext._initialize_context = use  # type: ignore[method-assign,assignment]
    forget()
    del spark
    _settle()
    control.ready()
    order = ""
    while not order:
        order = control.listen(60_000)
    known = json.loads(order)
    return [known["program"], *known["args"]]


def _bridge(name: str) -> Any:
    """An object of Slotwise's own in the driver's JVM, once there is a gateway to it."""
    from pyspark import SparkContext

    # By its whole name at once: part by part, the JVM would be asked for each package.
    return getattr(SparkContext._jvm, "org.apache.spark.scheduler.cluster.slotwise." + name)


def _settle() -> None:
    """Have Python's collector take what the imports and the practice have left, and pass over the rest for good, so
    that it does not go through all that while the program runs.
    """
    gc.collect()
    gc.freeze()


def _ask_for_settings_at_once() -> None:
    """Have pyspark ask the JVM once for all settings. Its own way takes four questions for each of them, and it goes
    through them whenever it makes a context.
    """
    from pyspark import SparkConf, SparkContext

    one_by_one = SparkConf.getAll

    @functools.wraps(one_by_one)
    def at_once(self: Any) -> "list[tuple[str, str]]":
        if self._jconf is None or SparkContext._jvm is None:
            return one_by_one(self)
        told = _bridge("ProgramSettings").all(self._jconf)
        return [(name, value) for name, value in json.loads(told)]

    SparkConf.getAll = at_once  # type: ignore[method-assign]


def _work_a_little(spark: Any) -> None:
    """Have the driver and its executors do what most programs do, so that they have loaded and compiled it."""
    rows = spark.range(0, 4000, 1, 2).selectExpr("id % 7 as k", "id as v", "concat('n', id % 11) as s")
    kinds: list[Callable[[int], Any]] = [
        lambda number: rows.where(rows.v > number).groupBy("k").sum("v").collect(),
        lambda number: rows.join(rows.groupBy("s").count(), "s").orderBy("v").limit(5 + number).collect(),
        lambda _: spark.createDataFrame([(1, "a"), (2, "b")], "n int, s string").filter("n > 1").count(),
        lambda _: spark.sparkContext.parallelize(range(8), 4).map(lambda n: (n % 2, n)).reduceByKey(max).collect(),
    ]
    for number in range(3):
        for kind in kinds:
            _try(kind, number)


def _read(spark: Any, files: "dict[str, str]", number: int) -> None:
    rows = spark.read.format("parquet").options(**files).load()
    rows.where(rows.v > number).groupBy("k").agg({"v": "sum", "k": "count"}).orderBy("k").collect()
    rows.groupBy("s").sum("v").collect()
    named = rows.where(f"v > {number} and k <> 9").selectExpr("k", f"upper(s) as s{number}", "d * 2 as d", "v")
    named.withColumn("w", named.v + number).groupBy("k", f"s{number}").agg({"d": "avg", "w": "min"}).limit(9).collect()


def _try(practice: "Callable[..., Any]", *arguments: Any) -> Any:
    """The result of a practice; None if it cannot be done. A job's settings may forbid some of them: there is less
    prepared then.
    """
    try:
        return practice(*arguments)
    except Exception as error:
        # Java's exceptions have their own text in the second line.
        print("cannot practise:", " ".join(str(error).splitlines()[:2]), file=sys.stderr)
        return None


def _read_program(program: str) -> Any:
    """The program's code, or the exit code if there is none to run."""
    try:
        with open(program, "rb") as source:
            text = source.read()
    except OSError as error:
        print(f"cannot read the program {program}: {error.strerror}", file=sys.stderr)
        return 2
    if b"\0" in text:
        print(f"{program} is not a Python program: it has null bytes in it", file=sys.stderr)
        return 2
    try:
        return compile(text, program, "exec", dont_inherit=True)
    except SyntaxError as error:
        traceback.print_exception(type(error), error, None)
        return 1


def _attach(connection: str, jvm_pid: str, timeout_s: float) -> None:
    """Import pyspark, wait for the JVM, and leave its port and secret where pyspark looks for them."""
    deadline = time.monotonic() + timeout_s
    _import_pyspark()
    pid = int(jvm_pid) if jvm_pid else None
    while not os.path.isfile(connection):
        if pid is not None and not _alive(pid):
            print("the driver's JVM ended before it was ready; its log says why", file=sys.stderr)
            raise SystemExit(1)
        if time.monotonic() > deadline:
            print(f"the driver's JVM was not ready after {timeout_s:g} s", file=sys.stderr)
            raise SystemExit(1)
        time.sleep(0.005)
    with open(connection, "rb") as info:
        port = int.from_bytes(info.read(4), "big")
        secret = info.read(int.from_bytes(info.read(4), "big")).decode("utf-8")
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret


def _import_pyspark() -> None:
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        print(f"{sys.executable} cannot import pyspark: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    # What a first session imports, and pandas where it is installed; here it costs nothing, the JVM takes longer.
    for name in ("unittest", "encodings.idna", "pyspark.sql.classic.dataframe"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if importlib.util.find_spec("pandas") is not None:
        try:
            import pandas  # noqa: F401
        except Exception as error:
            # The program will meet the same error if it needs pandas.
            print(f"pandas is installed but cannot be imported: {error}", file=sys.stderr)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # A zombie has ended, though its parent has not looked yet. The name before the state may have blanks.
            return stat.read().rpartition(b")")[2].split()[0] != b"Z"
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _set_up_path(program: str, py_files: "list[str]", folder: str) -> None:
    entries = [os.path.dirname(os.path.realpath(program))]
    for path in py_files:
        if path.endswith(".py"):
            # Only this file is meant, not all that lie beside it.
            os.makedirs(folder, exist_ok=True)
            shutil.copy(path, folder)
            if folder not in entries:
                entries.append(folder)
        else:
            entries.append(path)
    sys.path[:0] = entries


def _run(program: str, code: types.CodeType) -> int:
    """Execute ``code`` as the module ``__main__``; report what it raises as Python does."""
    module = types.ModuleType("__main__")
    module.__file__ = program
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", program)
    module.__dict__["__builtins__"] = builtins
    module.__dict__["__cached__"] = None
    # This script's own module is kept by its functions, which are on the stack.
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)
    except SystemExit as exit_:
        return _exit_code(exit_)
    except BaseException as error:
        if _termination is not None:
            # An echo of the termination: the program's call into the JVM failed because the context is being stopped.
            return _exit_code(SystemExit(_SIGTERM_CODE))
        # The first frame is this function.
        frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
        error.__traceback__ = frames
        sys.excepthook(type(error), error, frames)
        if isinstance(error, KeyboardInterrupt):
            _stop_apart().join(_STOP_TIMEOUT_S)
            return 130
        return 1
    return 0


def _exit_code(exit_: SystemExit) -> int:
    if _termination is not None:
        _termination.join(_STOP_TIMEOUT_S)
        return _SIGTERM_CODE
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    print(exit_.code, file=sys.stderr)
    return 1


_termination: Optional[threading.Thread] = None


def _terminated(_signal: int, _frame: Optional[types.FrameType]) -> NoReturn:
    global _termination  # noqa: PLW0603
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _termination = _stop_apart()
    # The exception may meet a `finally` that asks the JVM and waits for an answer that never comes.
    last_resort = threading.Timer(_STOP_TIMEOUT_S, os._exit, (_SIGTERM_CODE,))
    last_resort.daemon = True
    last_resort.start()
    raise SystemExit(_SIGTERM_CODE)


def _stop_apart() -> threading.Thread:
    """Stop the context on a thread of its own: this thread's connection to the JVM may wait for an answer still."""
    stopper = threading.Thread(target=_stop_context, daemon=True)
    stopper.start()
    return stopper


def _stop_at_exit() -> None:
    if _termination is None:
        _stop_context()


def _stop_context() -> None:
    """Stop what the program left running, so that the driver ends in order. Never changes the program's outcome."""
    core = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark.context")
    context = getattr(getattr(core, "SparkContext", None), "_active_spark_context", None)
    if context is None:
        return
    try:
        context.stop()
    except Exception as error:
        print(f"the Spark context could not be stopped: {error}", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print("usage: runner.py PROGRAM [ARGUMENT…]", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv))
