"""Who calls, and what they may do: bearer tokens, browser sessions, and the rule against calls from other sites.

A principal is one token; a session is another way to show it. When a token is revoked, everything that was opened with
it ends: its sessions, its event streams, its worker's stream."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from slotwise.dispatcher.http.problems import Problem
from slotwise.dispatcher.tokens import CLUSTER, Role, TokenRecord, TokenStore

SESSION_COOKIE = "slotwise_session"
DASHBOARD_HEADER = "x-slotwise"
DASHBOARD_HEADER_VALUE = "dashboard"
SESSION_S = 12 * 3600.0
_MAX_SESSIONS = 10_000
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="slotwise"'}


class Access(enum.Enum):
    """Who may make a call. Those of people rise: who may do more may do less."""

    OPEN = "open"
    VIEWER = "viewer"
    SUBMITTER = "submitter"
    ADMIN = "admin"
    JOIN = "join"


_RANK = {Access.VIEWER: 1, Access.SUBMITTER: 2, Access.ADMIN: 3}
_RANK_OF = {Role.VIEWER: 1, Role.SUBMITTER: 2, Role.ADMIN: 3, Role.JOIN: 0}


@dataclass(frozen=True)
class Principal:
    """Who calls. ``session`` is the key of the session that it was shown by, if any."""

    record: TokenRecord | None = None
    session: str | None = None

    @property
    def name(self) -> str:
        """For people and the audit log."""
        return self.record.name if self.record is not None else "anonymous"

    @property
    def role(self) -> str:
        """Likewise."""
        return self.record.role.value if self.record is not None else "none"

    def may(self, access: Access) -> bool:
        """Whether the role allows it."""
        if access is Access.OPEN:
            return True
        if self.record is None:
            return False
        if access is Access.JOIN:
            return self.record.role is Role.JOIN or self.record.name == CLUSTER
        return _RANK_OF[self.record.role] >= _RANK[access]


ANONYMOUS = Principal()


@dataclass(frozen=True)
class _Session:
    record: TokenRecord
    expires: float


class Authenticator:
    """Knows tokens and sessions. ``secure``: the port speaks TLS. ``clock`` gives seconds that only rise."""

    def __init__(self, tokens: TokenStore, clock: Callable[[], float], *, secure: bool = False) -> None:
        self.tokens = tokens
        self.secure = secure
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._ends: dict[TokenRecord, set[asyncio.Future[None]]] = {}
        self.on_revoked: list[Callable[[], None]] = []

    # ------------------------------------------------------------------------------------------- who it is

    def identify(self, connection: HTTPConnection) -> Principal:
        """Who calls, by the Authorization header, else by the session's cookie. Raises :class:`Problem` (401) for one
        that is not known.
        """
        header = connection.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            record = self.tokens.find(token.strip()) if scheme.lower() == "bearer" else None
            if record is None:
                raise Problem(HTTPStatus.UNAUTHORIZED, "this token is not known here, or was revoked", _CHALLENGE)
            return Principal(record)
        cookie = connection.cookies.get(SESSION_COOKIE)
        if cookie is None:
            return ANONYMOUS
        key = _key(cookie)
        record = self._record_of(key)
        if record is None:
            raise Problem(HTTPStatus.UNAUTHORIZED, "the session has ended; log in again", _CHALLENGE)
        return Principal(record, key)

    def _record_of(self, session: str) -> TokenRecord | None:
        known = self._sessions.get(session)
        if known is None:
            return None
        if known.expires <= self._clock() or not self.tokens.holds(known.record):
            del self._sessions[session]
            return None
        return known.record

    def is_valid(self, principal: Principal) -> bool:
        """Whether the principal could still call: for what stays open for long."""
        if principal.session is not None:
            return self._record_of(principal.session) is not None
        return principal.record is None or self.tokens.holds(principal.record)

    def authorize(self, principal: Principal, access: Access, connection: HTTPConnection, *, changes: bool) -> None:
        """Raise :class:`Problem` (401, 403) unless the principal may make a call of this kind."""
        if principal.session is not None and changes:
            require_own_site(connection)
        if principal.may(access):
            return
        if principal.record is None:
            raise Problem(
                HTTPStatus.UNAUTHORIZED, "this call needs a token (Authorization: Bearer …) or a session", _CHALLENGE
            )
        needs = "a worker's join token" if access is Access.JOIN else f"the role {access.value}"
        raise Problem(
            HTTPStatus.FORBIDDEN, f"this call needs {needs}; the token {principal.name!r} is for: {principal.role}"
        )

    # ------------------------------------------------------------------------------------------- sessions

    def open_session(self, token: str) -> tuple[str, TokenRecord] | None:
        """A new session for a token of a person: the cookie's value and whose it is; None for an unknown token."""
        record = self.tokens.find(token)
        if record is None or record.role is Role.JOIN:
            return None
        now = self._clock()
        while self._sessions:
            # All live equally long, so the first is the first to expire.
            first = next(iter(self._sessions.values()))
            if first.expires > now and len(self._sessions) < _MAX_SESSIONS:
                break
            self._sessions.popitem(last=False)
        cookie = secrets.token_urlsafe(32)
        self._sessions[_key(cookie)] = _Session(record, now + SESSION_S)
        return cookie, record

    def end_session(self, principal: Principal) -> None:
        """The session ends, and its event streams with it."""
        if principal.session is not None and self._sessions.pop(principal.session, None) is not None:
            self._tell()

    # ------------------------------------------------------------------------------------------- tokens

    def revoke(self, name: str) -> TokenRecord | None:
        """See :meth:`TokenStore.revoke`; what was opened with the token ends."""
        record = self.tokens.revoke(name)
        if record is not None:
            for key in [key for key, session in self._sessions.items() if session.record == record]:
                del self._sessions[key]
            for end in self._ends.pop(record, ()):
                if not end.done():
                    end.set_result(None)
            self._tell()
        return record

    def _tell(self) -> None:
        for tell in self.on_revoked:
            tell()

    def end_of(self, principal: Principal) -> asyncio.Future[None]:
        """Done when the principal's token is revoked. Cancel it when it is not wanted any more."""
        assert principal.record is not None
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ends = self._ends.setdefault(principal.record, set())
        ends.add(end)
        end.add_done_callback(ends.discard)
        return end


def _key(cookie: str) -> str:
    """What is kept of a session's id: the time that a look-up takes says nothing about the id itself."""
    return hashlib.sha256(cookie.encode()).hexdigest()


def require_own_site(connection: HTTPConnection) -> None:
    """A browser sends the cookie by itself, whoever wrote the page: only the dashboard may use it to change anything.
    Raises :class:`Problem` (403).
    """
    if connection.headers.get(DASHBOARD_HEADER) != DASHBOARD_HEADER_VALUE:
        raise Problem(HTTPStatus.FORBIDDEN, "a call by session that changes something needs X-Slotwise: dashboard")
    require_own_origin(connection)


def require_own_origin(connection: HTTPConnection) -> None:
    """Raise :class:`Problem` (403) when a page of another site makes the call."""
    origin = connection.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != connection.headers.get("host", "").lower():
        raise Problem(HTTPStatus.FORBIDDEN, f"this call comes from another site ({origin[:200]})")
