"""REST calls about who may call: the browser's session, and tokens."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from slotwise.dispatcher.http import shapes
from slotwise.dispatcher.http.auth import SESSION_COOKIE, SESSION_S, Authenticator, Principal, require_own_origin
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
        """POST /v1/session: a cookie that no script can read, in exchange for a token."""
        require_own_origin(ask.request)
        opened = self._auth.open_session(ask.body.token)
        if opened is None:
            raise Problem(HTTPStatus.UNAUTHORIZED, "this token is not known here, or is a worker's")
        cookie, record = opened
        # For the audit log.
        ask.principal = Principal(record)
        response = _json(shapes.SessionInfo(record.name, record.role.value))
        response.set_cookie(
            SESSION_COOKIE, cookie, int(SESSION_S), httponly=True, samesite="strict", secure=self._auth.secure
        )
        return response

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
