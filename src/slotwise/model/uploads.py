"""What a job's client has uploaded: files by their content, and the list of them, which is an uploaded file itself.

A job's specification names the list alone, by its SHA-256 (:class:`Uploads`), so that neither it nor the word to each
executor grows with the number of files. Relative paths in such a specification are names in the list."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from slotwise.model.errors import UsageError

FORMAT = 1
MOST_FILES = 20_000
"""Files of one job at most: the list of so many has 3 MB."""

_NAME_BYTES = 1024
_SHA256 = re.compile(r"^[0-9a-f]{64}$")


class UploadedFile(msgspec.Struct, frozen=True):
    """A file of a job: its ``name`` below the job's folder, with ``/`` between folders, and its content. ``shared``:
    executors have it in their folder too. ``executable``: it can be run.
    """

    name: str
    sha256: str
    size_bytes: int
    shared: bool = False
    executable: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """The list of a job's files, kept as JSON. ``environment``: what its Python environment is made of; the first is
    the ``requirements.txt`` or ``uv.lock``, the others are what that refers to, named as it does.
    """

    files: tuple[UploadedFile, ...] = ()
    environment: tuple[UploadedFile, ...] = ()
    format: int = FORMAT

    @property
    def hashes(self) -> frozenset[str]:
        """The names of all blobs that it needs, without its own."""
        return frozenset(file.sha256 for file in (*self.files, *self.environment))


class Uploads(msgspec.Struct, frozen=True):
    """A job's list, by its SHA-256, and what it comes to: ``files`` and ``size_bytes`` are for people.
    ``environment``: the name of the file that its Python environment is made from, if it has one.
    """

    manifest: str
    files: int = 0
    size_bytes: int = 0
    environment: str = ""


def is_sha256(text: str) -> bool:
    """Whether ``text`` can be the name of an uploaded file."""
    return _SHA256.match(text) is not None


def check_name(name: str, what: str = "an uploaded file") -> None:
    """Raise :class:`UsageError` for a name that does not stay below its folder, or that no file can have."""
    parts = name.split("/")
    if len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES or "\0" in name or "\\" in name:
        raise UsageError(f"{what} cannot be called {name[:100]!r}")
    if any(part in ("", ".", "..") or len(part.encode("utf-8", "surrogatepass")) > 255 for part in parts):
        raise UsageError(f"{what} is called {name[:100]!r}: write a relative name without . and ..")


def read_manifest(data: bytes) -> Manifest:
    """The list in ``data``. Raises :class:`UsageError` for one that cannot be used: whoever wrote it is not trusted."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the list of uploaded files is not one: {error}") from error
    if manifest.format != FORMAT:
        raise UsageError(f"the list of uploaded files is of format {manifest.format}, this version reads {FORMAT}")
    if len(manifest.files) + len(manifest.environment) > MOST_FILES:
        raise UsageError(f"a job can have {MOST_FILES} uploaded files at most")
    for group in (manifest.files, manifest.environment):
        _check_group(group)
    return manifest


def _check_group(files: Iterable[UploadedFile]) -> None:
    names: set[str] = set()
    for file in files:
        check_name(file.name)
        if not is_sha256(file.sha256) or file.size_bytes < 0:
            raise UsageError(f"the uploaded file {file.name!r} has no SHA-256 or no size")
        if file.name in names:
            raise UsageError(f"two uploaded files are called {file.name!r}")
        names.add(file.name)
    for name in names:
        parts = name.split("/")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in names:
                raise UsageError(f"{'/'.join(parts[:end])!r} is a file and a folder at once in the list of files")
