"""The dashboard: a page of plain HTML, CSS and JavaScript modules that lives on the REST API alone.

Every file is under a path that has the hash of all of them, so that browsers keep them for ever and never mix two
versions; the page itself is asked for anew each time. A strict Content-Security-Policy lets nothing run but these
files: no inline script, no other host, and (where browsers know trusted types) no text that becomes markup."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FOR_EVER = "public, max-age=31536000, immutable"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


class File(msgspec.Struct, frozen=True):
    """A static file: its media type, its bytes, and the same in gzip."""

    media_type: str
    data: bytes
    packed: bytes


class Site(msgspec.Struct, frozen=True):
    """All files by their path below ``static/``, the hash that is in their address, and the page."""

    digest: str
    files: dict[str, File]
    page: File


def routes() -> list[BaseRoute]:
    """``/``, ``/login`` and the static files. None of them needs a token: there is nothing of the cluster in them."""
    return [
        Route("/", _page),
        Route("/login", _page),
        Route("/static/{digest}/{path:path}", _static),
    ]


@lru_cache(maxsize=1)
def site() -> Site:
    """Read all files, once."""
    found = dict(sorted(_walk(resources.files(__name__).joinpath("static"), "")))
    digest = hashlib.sha256()
    for path, data in found.items():
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    name = digest.hexdigest()[:16]
    template = found.pop("index.html").decode()
    scripts = [path for path in found if path.endswith(".js")]
    # Without these a browser would learn of a module only from the one that imports it, a round trip a level.
    preload = "\n".join(f'    <link rel="modulepreload" href="/static/{name}/{path}">' for path in scripts)
    page = template.replace("    <!-- preload -->", preload).replace("{static}", f"/static/{name}")
    return Site(name, {path: _file(path, data) for path, data in found.items()}, _file("index.html", page.encode()))


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        else:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _file(path: str, data: bytes) -> File:
    suffix = path[path.rfind(".") :]
    kind = _TYPES.get(suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"
    return File(f"{kind}; charset=utf-8" if suffix in _TYPES else kind, data, gzip.compress(data, mtime=0))


async def _page(request: Request) -> Response:
    return _answer(request, site().page, "no-cache", site().digest)


async def _static(request: Request) -> Response:
    file = site().files.get(request.path_params["path"])
    if file is None or request.path_params["digest"] != site().digest:
        # A page of another version asks: what it would get here may not fit to what it has.
        return Response("there is no such file in this version\n", 404, _SECURITY, "text/plain")
    return _answer(request, file, _FOR_EVER, site().digest)


def _answer(request: Request, file: File, cache: str, tag: str) -> Response:
    packed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {**_SECURITY, "Cache-Control": cache, "Vary": "Accept-Encoding", "ETag": f'W/"{tag}"'}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    if packed:
        headers["Content-Encoding"] = "gzip"
    return Response(file.packed if packed else file.data, 200, headers, file.media_type)
