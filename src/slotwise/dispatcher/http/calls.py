"""What a REST call is: one declarative row, from which routing, checks, the audit log and the OpenAPI document follow.

A handler gets an :class:`Ask`, whose parameters and body have been checked against the row, and returns the value to
be encoded, or a whole response."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request

from slotwise.dispatcher.http.auth import Access, Principal
from slotwise.dispatcher.http.problems import Problem, bad_request
from slotwise.model.uploads import is_sha256

MAX_BODY_BYTES = 4 * 1024 * 1024
_MAX_INTEGER = 2**53 - 1
_JSON = "application/json"

Value = TypeVar("Value")


class Place(enum.Enum):
    """Where a parameter is, in OpenAPI's words."""

    PATH = "path"
    QUERY = "query"
    HEADER = "header"


@dataclass(frozen=True)
class Parameter(Generic[Value]):
    """A parameter with its JSON schema. ``parse`` raises :class:`ValueError` with what it must be; ``default`` is the
    value of one that is not given.
    """

    name: str
    place: Place
    meaning: str
    schema: Mapping[str, Any]
    parse: Callable[[str], Value]
    default: Value
    required: bool = False

    def read(self, given: Mapping[str, str] | QueryParams) -> Value:
        """Its value; raises :class:`Problem` for one that cannot be."""
        text = given.get(self.name)
        if text is None:
            if self.required:
                raise bad_request(f"the {self.place.value} parameter {self.name!r} is missing: {self.meaning}")
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise bad_request(f"{self.name} must be {error}, not {text[:100]!r}") from error


def in_path(name: str, meaning: str) -> Parameter[str]:
    """A part of the path."""
    return Parameter(name, Place.PATH, meaning, {"type": "string", "minLength": 1}, str, "", required=True)


def hash_in_path(name: str, meaning: str) -> Parameter[str]:
    """A SHA-256 in hexadecimal, as a part of the path."""

    def parse(given: str) -> str:
        if not is_sha256(given):
            raise ValueError("64 hexadecimal digits in lower case")
        return given

    schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    return Parameter(name, Place.PATH, meaning, schema, parse, "", required=True)


def text(name: str, meaning: str, place: Place = Place.QUERY) -> Parameter[str | None]:
    """Any text."""
    return Parameter(name, place, meaning, {"type": "string"}, str, None)


def integer(name: str, meaning: str, default: int | None = None, least: int = 0) -> Parameter[int | None]:
    """A whole number of at least ``least``."""

    def parse(given: str) -> int:
        if not (given.isascii() and given.isdecimal() and len(given) < 17 and least <= int(given) <= _MAX_INTEGER):
            raise ValueError(f"a whole number from {least}")
        return int(given)

    schema: dict[str, Any] = {"type": "integer", "minimum": least, "maximum": _MAX_INTEGER}
    if default is not None:
        schema["default"] = default
    return Parameter(name, Place.QUERY, meaning, schema, parse, default)


def flag(name: str, meaning: str, *, required: bool = False) -> Parameter[bool]:
    """true or 1, false or 0."""
    words = {"true": True, "1": True, "false": False, "0": False}

    def parse(given: str) -> bool:
        if given not in words:
            raise ValueError("true or false")
        return words[given]

    schema = {"type": "string", "enum": list(words)}
    return Parameter(name, Place.QUERY, meaning, schema, parse, False, required)


def choice(name: str, meaning: str, words: tuple[str, ...]) -> Parameter[str | None]:
    """One of ``words``."""

    def parse(given: str) -> str:
        if given not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return given

    return Parameter(name, Place.QUERY, meaning, {"type": "string", "enum": list(words)}, parse, None)


def some_of(name: str, meaning: str, words: tuple[str, ...]) -> Parameter[frozenset[str]]:
    """Some of ``words``, separated by commas."""

    def parse(given: str) -> frozenset[str]:
        found = frozenset(word.strip() for word in given.split(",") if word.strip())
        if not found or not found <= set(words):
            raise ValueError(f"some of {', '.join(words)}, separated by commas")
        return found

    alternatives = "|".join(words)
    schema = {"type": "string", "pattern": f"^({alternatives})(,({alternatives}))*$"}
    return Parameter(name, Place.QUERY, meaning, schema, parse, frozenset())


@dataclass
class Ask:
    """A call that was made: who makes it, its parameters by name, its decoded body."""

    request: Request
    principal: Principal
    values: dict[str, Any] = field(default_factory=dict)
    body: Any = None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


Handler = Callable[[Ask], Awaitable[Any]]


@dataclass(frozen=True)
class Call:
    """A row of the route table.

    ``path`` is Starlette's, which is OpenAPI's but for ``{name:path}``. ``name`` is the call's own. ``answer`` is the
    type of the JSON answer, or None for what ``media`` says, and ``any_media`` for what somebody else answers;
    ``takes_bytes``: the body is a file, which the handler reads itself as it comes;
    ``problems`` are the statuses that this call may answer beside those that all of its kind may.
    """

    method: str
    path: str
    access: Access
    summary: str
    handle: Handler
    answer: Any = None
    status: HTTPStatus = HTTPStatus.OK
    parameters: tuple[Parameter[Any], ...] = ()
    body: Any = None
    media: str = _JSON
    problems: tuple[HTTPStatus, ...] = ()
    any_media: bool = False
    takes_bytes: bool = False
    topic: str = "cluster"
    name: str = ""

    @property
    def is_open(self) -> bool:
        """Whether anybody may make it."""
        return self.access is Access.OPEN

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in ("GET", "HEAD")

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace(":path}", "}")

    def read_parameters(self, request: Request) -> dict[str, Any]:
        """The values of all parameters. Raises :class:`Problem`."""
        places: dict[Place, Mapping[str, str] | QueryParams] = {
            Place.PATH: request.path_params,
            Place.QUERY: request.query_params,
            Place.HEADER: request.headers,
        }
        return {parameter.name: parameter.read(places[parameter.place]) for parameter in self.parameters}

    async def read_body(self, request: Request) -> Any:
        """The decoded body. Raises :class:`Problem`."""
        if self.body is None:
            return None
        media = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
        if media != _JSON:
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"this call takes {_JSON}, not {media[:100]!r}")
        data = await read_limited(request)
        what = self.body.__name__.removeprefix("New")
        try:
            value = msgspec.json.decode(data, type=self.body)
            unknown = _left_out(msgspec.json.decode(data), msgspec.to_builtins(value))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"not a {what} as JSON: {error}") from error
        if unknown is not None:
            raise bad_request(f"not a {what} as JSON: it has an unknown field at `${unknown[:200]}`")
        return value


def _left_out(given: Any, taken: Any) -> str | None:
    """Where something was given that is not in what was made of it. Types that are also records take unknown fields, so
    that an older version can read those of a newer one; a caller who misspells one must learn of it.
    """
    if isinstance(given, dict) and isinstance(taken, dict):
        for key, value in given.items():
            if key not in taken:
                return f".{key}"
            if (found := _left_out(value, taken[key])) is not None:
                return f".{key}{found}"
    elif isinstance(given, list) and isinstance(taken, list | tuple):
        for number, (value, kept) in enumerate(zip(given, taken, strict=False)):
            if (found := _left_out(value, kept)) is not None:
                return f"[{number}]{found}"
    return None


async def read_limited(request: Request) -> bytes:
    """The body, if it is not over the limit."""
    too_large = Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is over {MAX_BODY_BYTES} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise too_large
    except ClientDisconnect as error:
        raise bad_request("the body broke off") from error
    return bytes(body)
