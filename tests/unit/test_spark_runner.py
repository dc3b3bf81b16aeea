"""The runner behaves as ``python program.py`` does. No JVM here."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from slotwise.spark.launch import RUNNER
from tests.unit.slot_owner import wait_for


def run(folder: Path, text: str, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(textwrap.dedent(text))
    return start([str(program), *args], env)


def start(argv: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNNER), *argv],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_program_is_main(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    result = run(
        tmp_path,
        """
        import pickle, sys, beside
        class Thing: pass
        assert __name__ == "__main__" and __file__.endswith("program.py"), __name__
        assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
        assert sys.modules["__main__"].Thing is Thing
        assert "main" not in globals()
        print(sys.argv[1:], beside.NAME, sys.path[0])
        """,
        "a",
        "--b",
    )
    assert result.stdout == f"['a', '--b'] beside {tmp_path.resolve()}\n"
    assert (result.returncode, result.stderr) == (0, "")


def test_slotwises_own_modules_are_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text("MINE = True")
    assert run(tmp_path, "import conf; assert conf.MINE").returncode == 0
    (tmp_path / "conf.py").unlink()
    assert "No module named 'conf'" in run(tmp_path, "import conf").stderr


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("import sys; sys.exit('went wrong')", 1, "went wrong\n"),
        ("import threading, time, sys\nthreading.Thread(target=lambda: time.sleep(0.2)).start()\nsys.exit(3)", 3, ""),
    ],
)
def test_exit_codes(tmp_path: Path, text: str, code: int, error: str) -> None:
    result = run(tmp_path, text)
    assert (result.returncode, result.stderr) == (code, error)


def test_a_traceback_shows_the_programs_frames_only(tmp_path: Path) -> None:
    result = run(tmp_path, "def f():\n    raise ValueError('no')\nf()\n")
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert result.stderr == plain.stderr


def test_a_syntax_error_is_shown_as_python_does(tmp_path: Path) -> None:
    result = run(tmp_path, "x = (\n")
    assert result.returncode == 1
    assert "runner.py" not in result.stderr
    assert "SyntaxError: '(' was never closed" in result.stderr
    assert 'program.py", line 1' in result.stderr


def test_programs_that_are_none(tmp_path: Path) -> None:
    missing = start([str(tmp_path / "missing.py")])
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "missing.py: No such file" in missing.stderr
    (tmp_path / "binary.py").write_bytes(b"\x00\x01")
    assert start([str(tmp_path / "binary.py")]).returncode == 2


def test_python_files(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    (lib / "package").mkdir(parents=True)
    (lib / "one.py").write_text("N = 1")
    (lib / "two.py").write_text("N = 2")
    (lib / "package" / "three.py").write_text("N = 3")
    files = json.dumps([str(lib / "one.py"), str(lib / "package")])
    env = {"SLOTWISE_PY_FILES": files, "SLOTWISE_PY_DIR": str(tmp_path / "slot" / "py-files")}
    result = run(
        tmp_path,
        """
        import one, three, os
        assert one.N + three.N == 4
        assert not [key for key in os.environ if key.startswith("SLOTWISE_")]
        import two
        """,
        env=env,
    )
    assert "No module named 'two'" in result.stderr


def test_sigterm_ends_the_program_in_order(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import time\ntry:\n    print('up', flush=True)\n    time.sleep(60)\nfinally:\n    print('tidy')\n"
    )
    with subprocess.Popen([sys.executable, str(RUNNER), str(program)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.read() == "tidy\n"
        assert child.wait(timeout=30) == 143


@pytest.mark.spark
def test_a_jvm_that_died_is_noticed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as dead:
        dead.wait(timeout=10)
    env = {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(tmp_path / "gateway"), "SLOTWISE_JVM_PID": str(dead.pid)}
    result = run(tmp_path, "print('never')", env=env)
    assert (result.returncode, result.stdout) == (1, "")
    assert "ended before it was ready" in result.stderr


def wait_for_order(folder: Path, practice: str) -> subprocess.Popen[str]:
    """A runner that waits in ``folder``, once it says that it is ready."""
    os.mkfifo(folder / "order")
    argv = [sys.executable, str(RUNNER), "--wait", practice, str(folder)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (folder / "ready").exists() or process.poll() is not None, 60.0)
    assert process.poll() is None, process.communicate()
    return process


def give_order(folder: Path, program: Path, cwd: Path, env: dict[str, str]) -> None:
    order = {"env": env, "cwd": str(cwd), "args": [str(program), "one"]}
    (folder / "order").write_text(json.dumps(order))


def test_one_that_waits_has_nothing_but_what_its_order_says(tmp_path: Path) -> None:
    waiting, elsewhere = tmp_path / "waiting", tmp_path / "elsewhere"
    waiting.mkdir()
    elsewhere.mkdir()
    program = tmp_path / "program.py"
    program.write_text("import json, os, sys\nprint(json.dumps([os.getcwd(), dict(os.environ), sys.argv]))")
    process = wait_for_order(waiting, "")
    give_order(waiting, program, elsewhere, {"WORD": "x"})
    output, error = process.communicate(timeout=30)
    cwd, env, argv = json.loads(output)
    assert (cwd, env, argv, error) == (str(elsewhere), {"WORD": "x"}, [str(program), "one"], "")
    assert (waiting / "taken").exists()


def test_a_practice_that_fails_leaves_one_that_waits_as_good_as_ever(tmp_path: Path) -> None:
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        told = {"port": nobody.getsockname()[1], "secret": "s", "rounds": 1, "conf": {}, "cluster": {}}
        practice = tmp_path / "practice"
        practice.write_text(json.dumps(told))
        program = tmp_path / "program.py"
        program.write_text("import os, threading\nprint(sorted(os.environ), threading.active_count())")
        process = wait_for_order(waiting, str(practice))
        # So that the JVM does not wait for it any longer.
        assert (tmp_path / "practice.done").exists()
        give_order(waiting, program, tmp_path, {"WORD": "x"})
        output, error = process.communicate(timeout=30)
    assert output == "['WORD'] 1\n"
    assert "Connection refused" in error
    assert process.returncode == 0
