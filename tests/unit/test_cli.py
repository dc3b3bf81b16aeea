"""The command line's answers to mistakes: one clear line, the right code, nothing started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.cli.main import _COMMANDS, cli, main
from slotwise.config import Configuration, load
from slotwise.config_options import OPTIONS, parse_duration
from slotwise.model.errors import ConfigError
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.resourcemanager.sizing import WorkerShape


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SLOTWISE_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "job.py"
    path.write_text("print('never')\n")
    return str(path)


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Exit code and standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    code = ended.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "nowhere.py"], "there is no file nowhere.py"),
        (["run", "."], "is a directory"),
        (["run", "/etc/hostname"], "neither a Python program"),
        (["run", "--executor-memory", "400m", "PROGRAM"], "450 MiB"),
        (["run", "--driver-memory", "100m", "PROGRAM"], "450 MiB"),
        (["run", "--executor-memory", "-1g", "PROGRAM"], "-1g"),
        (["run", "--executor-memory", "lots", "PROGRAM"], "lots"),
        (["run", "--executor-cores", "0", "PROGRAM"], "cores"),
        (["run", "--num-executors", "-2", "PROGRAM"], "-2"),
        (["run", "--min-executors", "4", "--max-executors", "2", "PROGRAM"], "--max-executors 2"),
        (["run", "--conf", "spark.executor.memory", "PROGRAM"], "spark.executor.memory"),
        (["run", "--conf", "executor.memory=1g", "PROGRAM"], "spark."),
        (["run", "--py-files", "gone.zip", "PROGRAM"], "gone.zip"),
        (["run", "--properties-file", "gone.conf", "PROGRAM"], "gone.conf"),
        (["run", "--env", "NOVALUE", "PROGRAM"], "KEY=VALUE"),
        (["run", "-D", "heartbeat.intervall=3 s", "PROGRAM"], "did you mean 'heartbeat.interval'"),
        (["run", "-D", "heartbeat.interval=soon", "PROGRAM"], "not a duration"),
        (["run", "-D", "heartbeat.interval=60 s", "PROGRAM"], "must be longer"),
        (["run", "--worker-memory", "4 bananas", "PROGRAM"], "4 bananas"),
        (["run", "--executor-memroy", "1g", "PROGRAM"], "--executor-memory"),
        (["rum"], "Did you mean 'run'"),
        (["worker", "--cpus", "0", "--memory", "1g"], "more than zero"),
        (["worker", "--cpus", "1", "--memory", "1g", "--resource", "gpu"], "NAME=AMOUNT"),
        (["master", "--host", "0.0.0.0"], "every address"),
        (["master", "--port", "70000"], "70000"),
    ],
)
def test_a_mistake_is_one_clear_line_and_code_2(
    capsys: pytest.CaptureFixture[str], program: str, argv: list[str], words: str
) -> None:
    code, err = call(capsys, *[program if word == "PROGRAM" else word for word in argv])
    assert code == 2, err
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["worker", "jobs"])
@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8090",
        "ftp://a:1",
        "http://",
        "http://[",
        "http://a:x",
        "http://a:0",
        "http://a:65536",
        "http://a:1\x1b",
    ],
)
def test_an_address_that_cannot_be_a_masters_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, url: str
) -> None:
    monkeypatch.setenv("SLOTWISE_TOKEN", "c" * 64)
    code, err = call(capsys, command, "--master", url)
    assert code == 1, err
    assert "write http://HOST:PORT" in err
    assert "Traceback" not in err


def test_no_master_is_one_clear_line_and_code_1(capsys: pytest.CaptureFixture[str], program: str) -> None:
    code, err = call(capsys, "jobs", "--master", "http://127.0.0.1:9")
    assert code == 1
    assert "no token" in err
    token = Path(program).with_name("token")
    token.write_text("t" * 32)
    code, err = call(capsys, "jobs", "--master", "http://127.0.0.1:9", "--token-file", str(token))
    assert code == 1
    assert "slotwise cluster start" in err
    assert len(err.splitlines()) == 1


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in _COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert len(capsys.readouterr().out) > 100


def test_help_imports_no_command() -> None:
    script = (
        "import sys\nfrom slotwise.cli.main import main\n"
        "try:\n main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('pyspark','httpx','uvicorn','yaml','rich','asyncio')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    assert "doctor" in done.stdout
    assert cli.name == "cli"


def test_configuration_rises_from_file_to_environment_to_flags(tmp_path: Path) -> None:
    file = tmp_path / "slotwise.yml"
    file.write_text("heartbeat:\n  interval: 1 s\n  timeout: 10 s\nslot.idle.timeout: 3 s\n")
    environment = {"SLOTWISE_CONF_HEARTBEAT_INTERVAL": "2 s", "SLOTWISE_CONF_SLOT_IDLE_TIMEOUT": "4 s"}
    configuration = load(file, ["slot.idle.timeout=5 s"], environment)
    assert configuration.get("heartbeat.timeout") == 10.0
    assert configuration.get("heartbeat.interval") == 2.0
    assert configuration.get("slot.idle.timeout") == 5.0


@pytest.mark.parametrize(
    ("text", "words"),
    [("heartbeat.intervall: 3 s", "heartbeat.interval"), ("- a\n- b", "key: value"), ("a: [", "not YAML")],
)
def test_a_configuration_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "slotwise.yml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load(file, (), {})


def test_an_unknown_environment_variable_of_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match="SLOTWISE_CONF_HEARTBEAT_INTERVAL"):
        load(None, (), {"SLOTWISE_CONF_HEARTBEAT_INTERVAL_": "3 s"})


def test_a_maximum_below_one_worker_is_refused_with_both_sizes() -> None:
    configuration = Configuration({"slotmanager.max-total-resource.memory": "4g"})
    shape = WorkerShape(ResourceProfile(2000, 8 * GIB), ResourceProfile(1000, 4 * GIB))
    with pytest.raises(ConfigError, match=r"4 GiB.*8 GiB"):
        configuration.resource_manager(shape)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"slotmanager.number-of-slots.min": "11", "slotmanager.number-of-slots.max": "14"}, r"needs 3 .*allows 2"),
        ({"slotmanager.placement-mode": "scatter"}, "neither pack nor spread"),
        ({"taskmanager.default-slot-fraction": "1.5"}, "at most 1"),
        ({"taskmanager.numberOfTaskSlots": "0"}, "at least 1"),
        ({"slotmanager.redundant-taskmanager-num": "-1"}, "whole number"),
    ],
)
def test_sz_06_contradictory_options_are_refused_together(values: dict[str, str], words: str) -> None:
    def use() -> None:
        configuration = Configuration({"taskmanager.numberOfTaskSlots": "5", **values})
        configuration.resource_manager(configuration.worker_shape(ResourceProfile(5000, 5 * GIB)))

    with pytest.raises(ConfigError, match=words):
        use()


def test_sm_04_a_default_slot_is_a_fraction_or_one_of_the_number_of_slots() -> None:
    total = ResourceProfile.of(6000, 12 * GIB, {"gpu": 2})
    by_number = Configuration({"taskmanager.numberOfTaskSlots": "3"}).worker_shape(total)
    assert by_number.default_profile == ResourceProfile(2000, 4 * GIB)
    by_fraction = Configuration({"taskmanager.default-slot-fraction": "1/2"}).worker_shape(total)
    assert by_fraction.default_profile == ResourceProfile.of(3000, 6 * GIB, {"gpu": 1})


def test_in_a_standalone_cluster_limits_have_no_effect() -> None:
    configuration = Configuration({"slotmanager.number-of-slots.min": "11", "slotmanager.number-of-slots.max": "1"})
    assert configuration.has_limits()
    assert configuration.resource_manager(None).sizing.worker is None


def test_durations() -> None:
    assert parse_duration("500 ms", "x") == 0.5
    assert parse_duration("5 min", "x") == 300.0
    assert parse_duration("-1", "x") == -1.0


def test_defaults_are_valid() -> None:
    configuration = Configuration()
    assert {configuration.get(key) is not None for key in OPTIONS} == {True, False}
