"""The commands that make a Python environment from a ``requirements.txt`` or a ``uv.lock``.

pyspark is left out where that can be: a job's pyspark is the cluster's, which its interpreter finds first in any
case."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from slotwise.model.errors import EnvironmentProblem

UV_LOCK = "uv.lock"
_PYSPARK = re.compile(r"^\s*pyspark(-client|-connect)?\s*($|[=<>!~;@\s])", re.IGNORECASE)


@dataclass(frozen=True)
class InstallPlan:
    """``commands``, to be run one after the other in the folder of the requirements, with ``env`` beside the worker's
    own environment. ``notes`` are for the log.
    """

    commands: tuple[tuple[str, ...], ...]
    env: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def install_plan(requirements: Path, venv: Path, python: str, installer: str) -> InstallPlan:
    """How to make ``venv`` for the interpreter ``python``. ``installer``: uv, pip, or auto. Raises
    :class:`EnvironmentProblem` when that is not on this machine.
    """
    uv = None if installer == "pip" else shutil.which("uv")
    if installer == "uv" and uv is None:
        raise EnvironmentProblem(
            "this worker has no uv on its PATH, which taskmanager.environments.installer asks for: install it, or set "
            "that to pip"
        )
    if requirements.name == UV_LOCK:
        if uv is None:
            raise EnvironmentProblem(
                "a uv.lock needs uv on the worker's PATH, and this worker has none (or "
                "taskmanager.environments.installer says pip): install uv there, or submit with a requirements.txt "
                "(uv export --no-dev -o requirements.txt)"
            )
        return _uv_sync(uv, requirements, venv, python)
    left_out = _leave_out_pyspark(requirements)
    notes = tuple(f"left out {line}: pyspark is the cluster's own" for line in left_out)
    if uv is not None:
        # Copies: what is made read-only here must not be the installer's own cache.
        env = {"UV_LINK_MODE": "copy", "UV_NO_PROGRESS": "1"}
        into = ("--python", str(venv / "bin" / "python"))
        install = (uv, "pip", "install", *into, "--compile-bytecode", "-r", requirements.name)
        return InstallPlan(((uv, "venv", "--no-project", "--python", python, str(venv)), install), env, notes)
    return InstallPlan(_pip(requirements, venv, python), {"PIP_PROGRESS_BAR": "off", "PIP_NO_INPUT": "1"}, notes)


def _uv_sync(uv: str, requirements: Path, venv: Path, python: str) -> InstallPlan:
    env = {"UV_LINK_MODE": "copy", "UV_NO_PROGRESS": "1", "UV_PROJECT_ENVIRONMENT": str(venv)}
    options = ("--frozen", "--no-dev", "--no-install-project", "--no-install-package", "pyspark", "--compile-bytecode")
    return InstallPlan(((uv, "sync", *options, "--python", python, "--directory", str(requirements.parent)),), env)


def _pip(requirements: Path, venv: Path, python: str) -> tuple[tuple[str, ...], ...]:
    inside = str(venv / "bin" / "python")
    options = ("install", "--disable-pip-version-check", "--no-warn-script-location", "-r", requirements.name)
    if importlib.util.find_spec("pip") is not None:
        # The worker's own pip installs into it: it need not get one of its own, which takes seconds.
        make = (python, "-m", "venv", "--without-pip", str(venv))
        return make, (sys.executable, "-m", "pip", "--python", inside, *options)
    return (python, "-m", "venv", str(venv)), (inside, "-m", "pip", *options)


def _leave_out_pyspark(requirements: Path) -> list[str]:
    """Take plain pyspark out of the file; with extras it stays, for what these bring. Returns what went."""
    kept: list[list[str]] = []
    gone: list[list[str]] = []
    logical: list[str] = []
    for line in requirements.read_text(encoding="utf-8").splitlines():
        logical.append(line)
        if line.rstrip().endswith("\\"):
            continue
        (gone if _PYSPARK.match(logical[0]) else kept).append(logical)
        logical = []
    if logical:
        kept.append(logical)
    if gone:
        requirements.write_text("".join(f"{line}\n" for lines in kept for line in lines), encoding="utf-8")
    return [lines[0].rstrip("\\ ").strip() for lines in gone]
