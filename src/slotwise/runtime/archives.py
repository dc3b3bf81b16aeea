"""Whether an archive stays in the folder that it is unpacked into. Nothing is unpacked to find out."""

from __future__ import annotations

import os.path
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path

_ZIP = (".zip", ".jar")
_TAR = (".tar", ".tar.gz", ".tgz")
_SYSTEM_UNIX = 3


def archive_fault(path: Path, name: str) -> str:
    """What is wrong with an archive called ``name`` that lies at ``path``; empty when it can be unpacked. Blocks, and
    reads the whole of a compressed tar file.
    """
    lower = name.lower()
    try:
        if lower.endswith(_ZIP):
            return _zip_fault(path)
        if lower.endswith(_TAR):
            return _tar_fault(path)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, NotImplementedError) as error:
        return f"it is damaged, or no archive of its kind: {error}"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    return f"Spark unpacks {', '.join((*_ZIP, *_TAR))} files alone"


def _zip_fault(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if fault := _leads_out(entry.filename):
                return fault
            mode = entry.external_attr >> 16
            if entry.create_system == _SYSTEM_UNIX and stat.S_ISLNK(mode):
                target = archive.read(entry).decode("utf-8", "surrogateescape")
                if fault := _link_leads_out(entry.filename, target):
                    return fault
    return ""


def _tar_fault(path: Path) -> str:
    with tarfile.open(path, "r:*") as archive:
        for entry in archive:
            if fault := _leads_out(entry.name):
                return fault
            if entry.issym():
                if fault := _link_leads_out(entry.name, entry.linkname):
                    return fault
            elif entry.islnk():
                # A hard link names another member, from the archive's own folder.
                if fault := _leads_out(entry.linkname):
                    return f"{entry.name!r} is a link, and {fault}"
            elif not (entry.isfile() or entry.isdir()):
                return f"{entry.name!r} in it is neither a file nor a folder nor a link"
    return ""


def _leads_out(name: str) -> str:
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        return f"{name!r} in it leads out of the folder that it is unpacked into"
    return ""


def _link_leads_out(name: str, target: str) -> str:
    inside = os.path.normpath(os.path.join(os.path.dirname(name), target))
    if target.startswith("/") or inside == ".." or inside.startswith(("../", "/")):
        return f"the link {name!r} in it leads out, to {target!r}"
    return ""
