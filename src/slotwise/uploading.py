"""What a client uploads for a job: which files, under which names, by which hashes. Nothing is sent here."""

from __future__ import annotations

import fnmatch
import hashlib
import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil

from slotwise.model.errors import UsageError
from slotwise.model.job import JobSpec
from slotwise.model.resources import GIB, format_bytes
from slotwise.model.uploads import Manifest, UploadedFile, Uploads, check_name
from slotwise.requirement_files import requirement_files
from slotwise.runtime.archives import archive_fault

MODES = ("auto", "always", "never")
MOST_PROJECT_FILES = 5_000
MOST_PROJECT_BYTES = 1 * GIB
IGNORE_FILE = ".slotwiseignore"

_LEFT_OUT = frozenset(
    (
        *(".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".nox", ".eggs"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".idea", ".vscode"),
        *("spark-warehouse", "metastore_db", "derby.log", ".DS_Store", ".slotwiseignore"),
    )
)
# The lists of a job, with the folder for each and the Spark setting that says the same.
_LISTS = (
    ("py_files", "py-files", "spark.submit.pyFiles"),
    ("files", "", "spark.files"),
    ("archives", "archives", "spark.archives"),
    ("jars", "jars", "spark.jars"),
)


@dataclass(frozen=True)
class UploadPlan:
    """A job with what must be uploaded before it is submitted: ``sources`` by hash, a file or the bytes themselves."""

    spec: JobSpec
    sources: dict[str, Path | bytes]
    files: int
    size_bytes: int


def is_elsewhere(url: str) -> bool:
    """Whether the master at ``url`` is on another machine, as far as can be seen from here."""
    host = urlsplit(url).hostname or ""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        # The call itself will say so.
        return True
    own = {address.address.partition("%")[0] for nic in psutil.net_if_addrs().values() for address in nic}
    return not any(ipaddress.ip_address(str(one).partition("%")[0]).is_loopback or one in own for one in found)


def wants_upload(mode: str, url: str) -> bool:
    """Whether a job's files are uploaded to the master at ``url``. Raises :class:`UsageError`."""
    if mode not in MODES:
        raise UsageError(f"upload is one of {', '.join(MODES)}, not {mode!r}")
    return mode == "always" or (mode == "auto" and is_elsewhere(url))


def plan_upload(spec: JobSpec, requirements: str | Path | None = None, *, files: bool = True) -> UploadPlan:
    """What ``spec`` needs of this machine: its files, unless ``files`` is false, and the environment that
    ``requirements`` describes. Reads all of it, to hash it. Raises :class:`UsageError`.
    """
    if not files and requirements is None:
        return UploadPlan(spec, {}, 0, 0)
    collected = _Collected()
    changes: dict[str, object] = {}
    environment: tuple[UploadedFile, ...] = ()
    if spec.uploads is not None:
        raise UsageError("this specification names uploaded files already")
    if files:
        changes = _job_files(spec, collected)
    if requirements is not None:
        named = [(name, path) for name, path in requirement_files(Path(requirements)).items()]
        environment = tuple(collected.hashed(name, path) for name, path in named)
    manifest = Manifest(tuple(collected.files), environment)
    text = msgspec.json.encode(manifest)
    name = hashlib.sha256(text).hexdigest()
    everything = (*manifest.files, *environment)
    size = sum(file.size_bytes for file in everything)
    uploads = Uploads(name, len(everything), size, environment[0].name if environment else "")
    collected.sources[name] = text
    return UploadPlan(
        msgspec.structs.replace(spec, uploads=uploads, **changes), collected.sources, len(everything), size
    )


class _Collected:
    """``files`` in the order of their names' making; ``sources`` by hash."""

    def __init__(self) -> None:
        self.files: list[UploadedFile] = []
        self.sources: dict[str, Path | bytes] = {}
        self._paths: dict[str, Path] = {}

    def add(self, name: str, path: Path, *, shared: bool = False) -> str:
        """Take ``path`` as ``name``, which is returned. The same file may come twice."""
        check_name(name, f"{path}: an uploaded file")
        other = self._paths.get(name)
        if other is not None:
            if other != path.resolve():
                raise UsageError(f"{path} and {other} would both be {name} in the job's folder: rename one")
            return name
        self._paths[name] = path.resolve()
        self.files.append(self.hashed(name, path, shared=shared))
        return name

    def hashed(self, name: str, path: Path, *, shared: bool = False) -> UploadedFile:
        """The file with its content's name."""
        check_name(name, f"{path}: an uploaded file")
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                status = os.fstat(file.fileno())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        self.sources[digest] = path
        return UploadedFile(name, digest, status.st_size, shared, bool(status.st_mode & 0o100))


def _job_files(spec: JobSpec, collected: _Collected) -> dict[str, object]:
    """Take the job's files; returns the fields of the specification that name them."""
    program = Path(spec.program)
    changes: dict[str, object] = {"working_dir": "."}
    if spec.pipeline is None:
        changes["program"] = collected.add(program.name, program)
    else:
        for path in project_files(program.parent):
            collected.add(path.relative_to(program.parent).as_posix(), path, shared=True)
        changes["program"] = program.name
    conf = dict(spec.conf)
    for field, folder, key in _LISTS:
        given = list(getattr(spec, field))
        # Spark would look for these on the worker.
        stay = [entry for entry in _entries(conf.get(key)) if _is_url(entry)]
        given += [_absolute(entry, spec.working_dir) for entry in _entries(conf.get(key)) if not _is_url(entry)]
        if key in conf:
            conf[key] = ",".join(stay)
            if not stay:
                del conf[key]
        changes[field] = tuple(dict.fromkeys(_taken(entry, field, folder, collected) for entry in given))
    changes["conf"] = conf
    return changes


def _taken(entry: str, field: str, folder: str, collected: _Collected) -> str:
    """A list's entry, as it is written in the specification."""
    if _is_url(entry):
        return entry
    text, mark, alias = entry.partition("#")
    path = Path(text)
    option = f"--{field.replace('_', '-')}"
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder; upload a .zip of it, or submit with --upload never")
    if not path.is_file():
        raise UsageError(f"{option}: there is no file {path}")
    if field == "archives" and (fault := archive_fault(path, path.name)):
        raise UsageError(f"{option}: {path}: {fault}")
    return collected.add(f"{folder}/{path.name}" if folder else path.name, path) + mark + alias


def project_files(project: Path) -> list[Path]:
    """The files of a project's folder, in order, without what belongs to tools (version control, caches, virtual
    environments, Spark's own tables) or is named in its ``.slotwiseignore``.

    Raises :class:`UsageError` when they are too many or too much, and for links that lead out of the folder.
    """
    patterns = _ignored(project)
    found: list[Path] = []
    total = 0
    for path in _walk(project, project.resolve(), patterns):
        found.append(path)
        total += path.stat().st_size
        if len(found) > MOST_PROJECT_FILES or total > MOST_PROJECT_BYTES:
            many = len(found) > MOST_PROJECT_FILES
            what = f"over {MOST_PROJECT_FILES} files" if many else f"over {format_bytes(MOST_PROJECT_BYTES)}"
            raise UsageError(
                f"the project {project} has {what}, too much to upload (the last was {path.relative_to(project)}): "
                f"name what is not needed in a {IGNORE_FILE} file there, or submit with --upload never"
            )
    return found


def _ignored(project: Path) -> list[str]:
    try:
        lines = (project / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {project / IGNORE_FILE}: {error}") from error
    return [line.strip().strip("/") for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _walk(folder: Path, root: Path, patterns: Iterable[str], prefix: str = "") -> Iterator[Path]:
    for path in sorted(folder.iterdir(), key=lambda one: one.name):
        name = f"{prefix}{path.name}"
        if path.name in _LEFT_OUT or path.name.endswith((".pyc", ".pyo", ".egg-info")):
            continue
        if any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(path.name, pattern) for pattern in patterns):
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise UsageError(
                f"{path} is a link that leads out of the project: put the file itself there, or name it in "
                f"{root / IGNORE_FILE}"
            )
        if path.is_dir():
            # A folder with this file is a virtual environment. A link to a folder could lead in a circle.
            if not path.is_symlink() and not (path / "pyvenv.cfg").is_file():
                yield from _walk(path, root, patterns, f"{name}/")
        elif path.is_file():
            yield path


def check_sizes(plan: UploadPlan, missing: Iterable[str], most_bytes: int) -> int:
    """The bytes of what is missing. Raises :class:`UsageError` for a file that the master would not take."""
    total = 0
    for name in missing:
        source = plan.sources[name]
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size > most_bytes:
            what = "the list of the job's files" if isinstance(source, bytes) else source
            raise UsageError(
                f"{what} has {format_bytes(size)}, and the master takes files of {format_bytes(most_bytes)} at most "
                "(blob.max-file-size): put it where workers can read it, and name that path"
            )
        total += size
    return total


def _entries(text: str | None) -> list[str]:
    return [entry.strip() for entry in (text or "").split(",") if entry.strip()]


def _is_url(entry: str) -> bool:
    return "://" in entry


def _absolute(entry: str, folder: str) -> str:
    text, mark, alias = entry.partition("#")
    return f"{Path(folder) / text}{mark}{alias}"
