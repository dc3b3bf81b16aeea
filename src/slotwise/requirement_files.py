"""A ``requirements.txt`` or ``uv.lock`` with the local files that it refers to: what must be uploaded to build it."""

from __future__ import annotations

import os.path
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from slotwise.model.errors import UsageError

UV_LOCK = "uv.lock"
_PACKAGES = (".whl", ".tar.gz", ".zip", ".tar.bz2")
_NAMES = ("-r", "--requirement", "-c", "--constraint")
_FOLDERS = ("-f", "--find-links")
_EDITABLE = ("-e", "--editable")
_DIRECT = re.compile(r"^[A-Za-z0-9._-]+(\[[^\]]*\])?\s*@\s*(?P<url>\S+)")


def requirement_files(file: Path) -> dict[str, Path]:
    """The files by the names that ``file`` uses for them; itself first, then in order of their names.

    Raises :class:`UsageError` for what cannot be uploaded: a file elsewhere than beside or below it, a folder to build.
    """
    file = file.expanduser().absolute()
    if not file.is_file():
        raise UsageError(f"--requirements: there is no file {file}")
    if file.name == UV_LOCK:
        others = _of_lock(file)
    elif file.suffix in (".txt", ".in"):
        others = dict(_of_requirements(file, file.parent, {file}))
    else:
        raise UsageError(f"--requirements: {file.name} is neither a requirements file (.txt) nor a uv.lock")
    others.pop(file.name, None)
    return {file.name: file, **dict(sorted(others.items()))}


def _of_lock(file: Path) -> dict[str, Path]:
    project = file.with_name("pyproject.toml")
    if not project.is_file():
        raise UsageError(f"--requirements: a uv.lock needs its pyproject.toml beside it, and {project} is not there")
    try:
        packages = tomllib.loads(file.read_text(encoding="utf-8")).get("package", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--requirements: cannot read {file}: {error}") from error
    found = {project.name: project}
    for package in packages:
        for path in _local_sources(package, file):
            found.update(_below(file, file.parent, path))
    return found


def _local_sources(package: dict[str, Any], file: Path) -> Iterator[str]:
    source = package.get("source", {})
    for kind in ("editable", "directory", "virtual"):
        if source.get(kind, ".") != ".":
            raise UsageError(
                f"--requirements: {file.name} has {package.get('name')} in the folder {source[kind]}, which is not "
                "uploaded: build a wheel of it and lock that"
            )
    if "path" in source:
        yield source["path"]
    registry = source.get("registry", "")
    if registry and "://" not in registry:
        for built in (*package.get("wheels", []), package.get("sdist", {})):
            if "path" in built:
                yield str(Path(registry) / built["path"])


def _of_requirements(file: Path, root: Path, seen: set[Path]) -> Iterator[tuple[str, Path]]:
    for line in _lines(file):
        option, value = _option(line)
        if option in _EDITABLE:
            raise UsageError(f"{file}: {line}: an editable package is not uploaded; build a wheel and name that")
        if option in _NAMES:
            if "://" in value:
                continue
            # Such names count from the file that has them.
            yield from _below(file, root, value).items()
            path = (file.parent / value).absolute()
            if path not in seen:
                seen.add(path)
                yield from _of_requirements(path, root, seen)
        elif option in _FOLDERS:
            yield from _of_folder(file, root, value)
        elif not option:
            local = _local(line)
            if local is not None:
                yield from _below(file, root, local).items()


def _of_folder(file: Path, root: Path, value: str) -> Iterator[tuple[str, Path]]:
    if "://" in value:
        return
    # pip and uv look for it from where they run, which is the folder of the first file.
    _require_relative(file, value)
    folder = Path(_normal(root / value))
    if not folder.is_relative_to(root):
        raise UsageError(f"{file}: --find-links {value} does not lie below {root}; copy it there")
    if not folder.is_dir():
        raise UsageError(f"{file}: --find-links {value}: there is no folder {folder}")
    for path in sorted(folder.iterdir()):
        if path.name.endswith(_PACKAGES) and path.is_file():
            yield path.relative_to(root).as_posix(), path


def _below(file: Path, root: Path, value: str) -> dict[str, Path]:
    """The named file with its name from ``root``."""
    _require_relative(file, value)
    path = file.parent / value
    try:
        name = Path(_normal(path)).relative_to(_normal(root)).as_posix()
    except ValueError:
        raise UsageError(
            f"{file}: {value} does not lie beside or below {root}: what an environment is made of is uploaded with its "
            "file's folder; copy it there"
        ) from None
    if path.is_dir():
        raise UsageError(f"{file}: {value} is a folder; build a wheel of it and name that")
    if not path.is_file():
        raise UsageError(f"{file}: there is no file {value}")
    return {name: path}


def _require_relative(file: Path, value: str) -> None:
    if value.startswith("/"):
        raise UsageError(f"{file}: {value} is a path of this machine alone: name it relative to the file's folder")


def _normal(path: Path) -> str:
    """Without ``..``, and without looking at links: names must be those that the file uses."""
    return os.path.normpath(path.absolute())


def _local(line: str) -> str | None:
    """The path in a requirement that names a file; None for one that names a package."""
    requirement = line.split(" --hash", 1)[0].split(";", 1)[0].strip()
    direct = _DIRECT.match(requirement)
    url = direct.group("url") if direct is not None else requirement
    if url.startswith("file:"):
        if not url.startswith("file:///"):
            return url.removeprefix("file:")
        return unquote(urlsplit(url).path)
    if "://" in url:
        return None
    looks_local = url.startswith((".", "/")) or "/" in url or url.endswith(_PACKAGES)
    return url if looks_local else None


def _option(line: str) -> tuple[str, str]:
    """An option's name and value; no name for a requirement."""
    if not line.startswith("-"):
        return "", ""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    name, separator, value = words[0].partition("=")
    if not separator and not name.startswith("--") and len(name) > 2:
        return name[:2], name[2:]
    return name, value if separator else " ".join(words[1:2])


def _lines(file: Path) -> Iterator[str]:
    """The logical lines, without comments."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    for line in text.replace("\\\n", " ").splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).strip()
        if bare:
            yield bare
