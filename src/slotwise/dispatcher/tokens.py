"""Tokens of people and workers: who may call this master. One file, readable by its owner only, with digests in place
of the tokens themselves.

A token has 256 random bits, so its SHA-256 tells nobody what it is, and needs neither salt nor a slow hash."""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets

import msgspec

from slotwise.dispatcher.files import Files
from slotwise.model.errors import ClusterError, StoreError, UsageError
from slotwise.runtime.clock import unix_time

FILE = "tokens.json"
FORMAT = 1
MAX_TOKENS = 10_000
_PREFIX = "slw_"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
_NAME = re.compile(NAME_PATTERN)
CLUSTER = "cluster"
"""The name of the token that a master makes by itself; no other may have it."""


class Role(enum.Enum):
    """What a token is for. People's roles rise; ``join`` lets a worker open its stream and nothing else."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    ADMIN = "admin"
    JOIN = "join"


class TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token as it is kept: ``sha256`` is that of the token in hexadecimal."""

    name: str
    role: Role
    sha256: str
    created_unix_s: float


class _File(msgspec.Struct, frozen=True):
    format: int
    tokens: tuple[TokenRecord, ...]


def digest(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokenStore:
    """The tokens in the file ``tokens.json`` of ``files``, and ``cluster_token``, which is admin and join token at once
    and not kept there.

    Raises :class:`StoreError` when the file cannot be read: who may call must never be guessed.
    """

    def __init__(self, files: Files, cluster_token: str) -> None:
        self._files = files
        cluster = TokenRecord(CLUSTER, Role.ADMIN, digest(cluster_token), unix_time())
        self._tokens: dict[str, TokenRecord] = {CLUSTER: cluster}
        self._tokens |= {record.name: record for record in self._read()}

    def _read(self) -> tuple[TokenRecord, ...]:
        data = self._files.read(FILE)
        if data is None:
            return ()
        try:
            kept = msgspec.json.decode(data, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(
                f"{self._files.where(FILE)} is damaged ({error}), and nobody can be told apart by it; put a good copy "
                "in its place, or remove it and make new tokens with `slotwise token create`"
            ) from error
        if kept.format > FORMAT:
            raise StoreError(f"{self._files.where(FILE)} was written by a newer slotwise; run that one")
        return tuple(record for record in kept.tokens if record.name != CLUSTER)

    def find(self, token: str) -> TokenRecord | None:
        """The record of a token. Takes the same time wherever it is, and whether it is there or not."""
        given = digest(token)
        found: TokenRecord | None = None
        for record in self._tokens.values():
            if hmac.compare_digest(record.sha256, given):
                found = record
        return found

    def holds(self, record: TokenRecord) -> bool:
        """Whether this very token is still valid."""
        return self._tokens.get(record.name) == record

    def records(self) -> list[TokenRecord]:
        """All tokens that can be revoked, oldest first."""
        return [record for record in self._tokens.values() if record.name != CLUSTER]

    def create(self, name: str, role: Role) -> tuple[str, TokenRecord]:
        """A new token, shown this once, and its record. Raises :class:`UsageError` for a name that cannot be,
        :class:`ClusterError` for one that is taken, :class:`StoreError` when it cannot be kept.
        """
        if not _NAME.match(name):
            raise UsageError("a token's name has 1 to 64 letters, digits and . _ @ -, and begins with one of the first")
        if name in self._tokens:
            raise ClusterError(f"there is a token {name!r} already; revoke it first, or choose another name")
        if len(self._tokens) > MAX_TOKENS:
            raise ClusterError(f"there are {MAX_TOKENS} tokens, which is the limit; revoke some")
        token = _PREFIX + secrets.token_urlsafe(32)
        record = TokenRecord(name, role, digest(token), unix_time())
        self._write({**self._tokens, name: record})
        return token, record

    def revoke(self, name: str) -> TokenRecord | None:
        """The token is valid no more; returns its record if there was one. Raises :class:`StoreError` when that cannot
        be kept (then it still is), :class:`ClusterError` for the cluster's own.
        """
        if name == CLUSTER:
            raise ClusterError(
                "the cluster's own token cannot be revoked: stop the master, remove its token file and start it again"
            )
        record = self._tokens.get(name)
        if record is not None:
            self._write({other: kept for other, kept in self._tokens.items() if other != name})
        return record

    def _write(self, tokens: dict[str, TokenRecord]) -> None:
        """On the disk first: what was said to be so must be so after a crash."""
        kept = _File(FORMAT, tuple(record for record in tokens.values() if record.name != CLUSTER))
        self._files.write(FILE, msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
        self._tokens = tokens
