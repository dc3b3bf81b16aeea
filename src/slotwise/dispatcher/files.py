"""Small files by name, written whole: what the stores of jobs and of uploaded files are built on.

The port is :class:`Files`. A write is *atomic* (a reader sees the old content or the new, whatever dies when) and
*durable* once it returns. Only file systems that can promise both are taken: a local directory (a file beside it,
synced, renamed, the directory synced), and fsspec's object stores, where an object appears whole or not at all. Over
FTP, SFTP or HTTP half an upload can be seen, so they are refused."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem

from slotwise.model.errors import StoreError

_PARTIAL = ".partial"
# fsspec protocols whose uploads replace an object whole.
_ATOMIC = ("memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")


class Files(Protocol):
    """Files below one root. Names are relative, with ``/`` between folders. All but :meth:`read` and :meth:`open`
    create folders as needed, though never the root. Raises :class:`StoreError` with the file's full name.
    """

    def where(self, name: str = "") -> str:
        """The full name, for people."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole, in place of any that there is; atomic and durable."""
        ...

    def add(self) -> Incoming:
        """Begin a file that comes in pieces, whose name is known only once its content is (see :class:`Incoming`)."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content, or None where there is no such file."""
        ...

    def open(self, name: str) -> BinaryIO | None:
        """The file for reading, or None where there is none."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of the file, or None where there is none."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """The names (without the folder's) of what lies in ``folder``, sorted; empty where there is no folder."""
        ...

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Bytes of each file (not of each folder) in ``folder``, by its name."""
        ...

    def move(self, name: str, to: str) -> None:
        """Rename a file, in place of any that there is."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; no error where there is none."""
        ...

    def remove_partial(self, folder: str = "") -> int:
        """Remove what a crash left half-written in ``folder``; returns how many files that were."""
        ...


class Incoming(Protocol):
    """A file on its way into a store: :meth:`write` its pieces, then :meth:`keep` it; :meth:`drop` it in any case."""

    def write(self, piece: bytes) -> None:
        """Take the next bytes."""
        ...

    def keep(self, name: str) -> None:
        """All is there: make it durable under ``name``."""
        ...

    def drop(self) -> None:
        """Forget it."""
        ...


def open_files(url: str | Path) -> Files:
    """The files at a local path, a ``file://`` URL, or an fsspec URL of an object store. Raises :class:`StoreError`
    for a protocol that cannot write atomically, and for a local directory that cannot be used.
    """
    text = str(url)
    protocol = text.split("://", 1)[0] if "://" in text else "file"
    if protocol in ("file", "local"):
        return LocalFiles(Path(text.split("://", 1)[-1]))
    if protocol not in _ATOMIC:
        raise StoreError(f"{text}: {protocol} cannot replace a file whole; use a directory or an object store")
    try:
        system, root = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise StoreError(f"{text}: {error}") from error
    return ObjectFiles(system, root)


@contextlib.contextmanager
def _named(what: str, name: str) -> Iterator[None]:
    """Errors of the operating system and of stores' clients become one line that names the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {what} {name}: {error.strerror or error}") from error


class ObjectFiles:
    """Files on an fsspec file system that replaces an object whole. What comes in pieces lies in a temporary file of
    this machine until it is complete.
    """

    def __init__(self, system: Any, root: str) -> None:
        self._system = system
        self._root = root.rstrip("/")

    def where(self, name: str = "") -> str:
        """The full name."""
        return f"{self._root}/{name}" if name else self._root

    def write(self, name: str, data: bytes) -> None:
        """One upload."""
        with _named("write", self.where(name)):
            self._system.makedirs(self._parent(name), exist_ok=True)
            self._system.pipe_file(self.where(name), data)

    def add(self) -> Incoming:
        """In a temporary file until it is complete."""
        return _IncomingObject(self)

    def put(self, local: Path, name: str) -> None:
        """One upload of a local file."""
        with _named("write", self.where(name)):
            self._system.makedirs(self._parent(name), exist_ok=True)
            self._system.put_file(str(local), self.where(name))

    def read(self, name: str) -> bytes | None:
        """One download."""
        try:
            with _named("read", self.where(name)):
                return bytes(self._system.cat_file(self.where(name)))
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def open(self, name: str) -> BinaryIO | None:
        """A buffered download."""
        if self.size(name) is None:
            return None
        with _named("read", self.where(name)):
            file: BinaryIO = self._system.open(self.where(name), "rb")
            return file

    def size(self, name: str) -> int | None:
        """Bytes."""
        with _named("read", self.where(name)):
            try:
                return int(self._system.info(self.where(name))["size"])
            except FileNotFoundError:
                return None

    def names(self, folder: str = "") -> list[str]:
        """From a fresh listing."""
        with _named("list", self.where(folder)):
            self._system.invalidate_cache()
            try:
                found = self._system.ls(self.where(folder), detail=False)
            except FileNotFoundError:
                return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """From a fresh listing."""
        with _named("list", self.where(folder)):
            self._system.invalidate_cache()
            try:
                found = self._system.ls(self.where(folder), detail=True)
            except FileNotFoundError:
                return {}
        return {
            str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]: int(entry["size"])
            for entry in found
            if entry["type"] == "file"
        }

    def move(self, name: str, to: str) -> None:
        """A copy and a removal: a crash between them leaves both, never none."""
        with _named("move", self.where(name)):
            self._system.makedirs(self._parent(to), exist_ok=True)
            self._system.mv(self.where(name), self.where(to))

    def remove(self, name: str) -> None:
        """Whatever becomes of its folder."""
        with _named("remove", self.where(name)), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self.where(name))

    def remove_partial(self, folder: str = "") -> int:
        """There never are any."""
        return 0

    def _parent(self, name: str) -> str:
        return self.where(name).rsplit("/", 1)[0]


class _IncomingObject:
    def __init__(self, files: ObjectFiles) -> None:
        self._files = files
        with _named("make", "a temporary file for an upload"):
            self._file = tempfile.NamedTemporaryFile(prefix="slotwise-incoming-")  # noqa: SIM115

    def write(self, piece: bytes) -> None:
        with _named("write", self._file.name):
            self._file.write(piece)

    def keep(self, name: str) -> None:
        with _named("write", self._file.name):
            self._file.flush()
        self._files.put(Path(self._file.name), name)

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class LocalFiles(ObjectFiles):
    """Files in a local directory, which is made with mode 0700. Every write is synced to the disk, and so is its
    name.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(LocalFileSystem(), str(directory.absolute()))
        self._path = directory.absolute()
        with _named("make", str(directory)):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # One that cannot be written to is found out now, not with the first job.
            probe = directory / f"probe-{secrets.token_hex(4)}{_PARTIAL}"
            try:
                with probe.open("xb") as file:
                    file.write(b"probe")
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                probe.unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """To a file beside it, synced, renamed, the directory synced."""
        with _named("write", self.where(name)):
            path = self._folder_of(name) / name.rsplit("/", 1)[-1]
            partial = path.with_name(path.name + _PARTIAL)
            try:
                with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except OSError:
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)
                raise
            _sync_directory(path.parent)

    def add(self) -> Incoming:
        """To a partial file below the root."""
        return _IncomingFile(self, self._path)

    def move(self, name: str, to: str) -> None:
        """A rename."""
        with _named("move", self.where(name)):
            source, target = self._path / name, self._folder_of(to) / to.rsplit("/", 1)[-1]
            source.replace(target)
            _sync_directory(target.parent)
            _sync_directory(source.parent)

    def take_in(self, partial: Path, name: str) -> None:
        """Rename a synced partial file to its place."""
        with _named("write", self.where(name)):
            target = self._folder_of(name) / name.rsplit("/", 1)[-1]
            partial.replace(target)
            _sync_directory(target.parent)

    def remove_partial(self, folder: str = "") -> int:
        """What a crash has left."""
        partial = list((self._path / folder).glob(f"*{_PARTIAL}"))
        for path in partial:
            with contextlib.suppress(OSError):
                path.unlink()
        return len(partial)

    def _folder_of(self, name: str) -> Path:
        """The file's folder, made where it is missing. The root is not: one that has gone must be noticed, and a new
        one in its place would be empty.
        """
        folder = self._path
        for part in name.split("/")[:-1]:
            if not (folder / part).is_dir():
                # Another thread may be making it as well.
                (folder / part).mkdir(mode=0o700, exist_ok=True)
                _sync_directory(folder)
            folder /= part
        return folder


class _IncomingFile:
    def __init__(self, files: LocalFiles, directory: Path) -> None:
        self._files = files
        self._path = directory / f"incoming-{secrets.token_hex(8)}{_PARTIAL}"
        with _named("write", str(self._path)):
            self._file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def write(self, piece: bytes) -> None:
        with _named("write", str(self._path)):
            self._file.write(piece)

    def keep(self, name: str) -> None:
        with _named("write", str(self._path)):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        self._files.take_in(self._path, name)

    def drop(self) -> None:
        # Closing writes what is buffered, which a full disk does not take.
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    """A new name is durable only once its directory is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
