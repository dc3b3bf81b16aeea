"""REST calls about who may call: the browser's session, and tokens."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from slotwise.dispatcher.http import shapes
from slotwise.dispatcher.http.auth import (
    CODE_S,
    SESSION_COOKIE,
    SESSION_S,
    Authenticator,
    Principal,
    require_own_origin,
)
from slotwise.dispatcher.http.calls import Ask
from slotwise.dispatcher.http.problems import Problem, bad_request, not_found
from slotwise.dispatcher.tokens import TokenRecord
from slotwise.model.errors import ClusterError, StoreError, UsageError


class People:
    """See the module's head."""

    def __init__(self, auth: Authenticator) -> None:
        self._auth = auth

    # ------------------------------------------------------------------------------------------- the session

    async def log_in(self, ask: Ask) -> Response:
        """POST /v1/session: a cookie that no script can read, in exchange for a token or a code."""
        require_own_origin(ask.request)
        token, code = ask.body.token, ask.body.code
        if (token is None) == (code is None):
            raise bad_request("a session is opened for a token or for a code: give one of the two")
        if token is not None:
            opened, wrong = self._auth.open_session(token), "this token is not known here, or is a worker's"
        else:
            opened, wrong = self._auth.redeem(code), "this code was used before, or is too old"
        if opened is None:
            raise Problem(HTTPStatus.UNAUTHORIZED, wrong)
        cookie, record = opened
        # For the audit log.
        ask.principal = Principal(record)
        response = _json(shapes.SessionInfo(record.name, record.role.value))
        response.set_cookie(
            SESSION_COOKIE, cookie, int(SESSION_S), httponly=True, samesite="strict", secure=self._auth.secure
        )
        return response

    async def code(self, ask: Ask) -> shapes.SessionCode:
        """POST /v1/session-codes: only for callers with a token, so that one session never becomes two."""
        record = ask.principal.record
        if ask.principal.session is not None or record is None:
            raise Problem(HTTPStatus.FORBIDDEN, "a code is given for a token, not for a session")
        return shapes.SessionCode(self._auth.open_code(record), int(CODE_S))

    async def who(self, ask: Ask) -> shapes.SessionInfo:
        """GET /v1/session: also for callers with a token."""
        return shapes.SessionInfo(ask.principal.name, ask.principal.role)

    async def log_out(self, ask: Ask) -> Response:
        """DELETE /v1/session."""
        self._auth.end_session(ask.principal)
        response = _json(shapes.Empty())
        response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict", secure=self._auth.secure)
        return response

    # ------------------------------------------------------------------------------------------- tokens

    async def tokens(self, _: Ask) -> shapes.Tokens:
        """GET /v1/tokens."""
        return shapes.Tokens([_info(record) for record in self._auth.tokens.records()])

    async def create(self, ask: Ask) -> shapes.CreatedToken:
        """POST /v1/tokens."""
        try:
            token, record = self._auth.tokens.create(ask.body.name, ask.body.role)
        except UsageError as error:
            raise bad_request(str(error)) from error
        except ClusterError as error:
            raise Problem(HTTPStatus.CONFLICT, str(error)) from error
        except StoreError as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        return shapes.CreatedToken(**msgspec.structs.asdict(_info(record)), token=token)

    async def revoke(self, ask: Ask) -> shapes.TokenInfo:
        """DELETE /v1/tokens/:name."""
        try:
            record = self._auth.revoke(ask["name"])
        except ClusterError as error:
            raise Problem(HTTPStatus.CONFLICT, str(error)) from error
        except StoreError as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        if record is None:
            raise not_found(f"there is no token {ask['name'][:200]!r}")
        return _info(record)


def _info(record: TokenRecord) -> shapes.TokenInfo:
    return shapes.TokenInfo(record.name, record.role, int(record.created_unix_s * 1000))


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
