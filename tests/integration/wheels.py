"""Tiny packages, built here: tests of environments need no index."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheel(folder: Path, name: str, code: str, version: str = "1.0", more: Mapping[str, str] | None = None) -> Path:
    """A wheel of the package ``name`` with one module of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(more or {}),
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path


def requirements(folder: Path, *lines: str) -> Path:
    """A requirements file that asks no index."""
    path = folder / "requirements.txt"
    path.write_text("\n".join(("--no-index", "--find-links wheels", *lines)) + "\n")
    return path
