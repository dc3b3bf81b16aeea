"""TLS for the master's port and for those who dial it.

Certificates and keys are PEM files. Errors are :class:`UsageError` that name the file and what is wrong with it."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import msgspec

from slotwise.model.errors import UsageError

CA_CERT, CLIENT_CERT, CLIENT_KEY = "SLOTWISE_CA_CERT", "SLOTWISE_CLIENT_CERT", "SLOTWISE_CLIENT_KEY"


class ServerTls(msgspec.Struct, frozen=True):
    """The master's certificate (with those between it and its authority) and its key. With ``client_ca`` only callers
    with a certificate of that authority get as far as showing a token.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Ready to serve with. Raises :class:`UsageError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_own(context, "--tls-cert", self.cert, "--tls-key", self.key)
        if self.client_ca is not None:
            _load_authority(context, "--tls-client-ca", self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class ClientTls(msgspec.Struct, frozen=True):
    """Whom a caller trusts: ``ca_cert`` (None: the authorities of this machine), and what it shows of itself, if the
    master asks for it.
    """

    ca_cert: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @classmethod
    def of(cls, ca_cert: Path | None = None, cert: Path | None = None, key: Path | None = None) -> ClientTls:
        """What is given, else what the environment says (SLOTWISE_CA_CERT, SLOTWISE_CLIENT_CERT, SLOTWISE_CLIENT_KEY).
        Raises :class:`UsageError` for a certificate without its key.
        """

        def known(given: Path | None, variable: str) -> Path | None:
            return given or (Path(value) if (value := os.environ.get(variable)) else None)

        found = cls(known(ca_cert, CA_CERT), known(cert, CLIENT_CERT), known(key, CLIENT_KEY))
        if found.key is not None and found.cert is None:
            raise UsageError("a client's key needs its certificate (--client-cert, SLOTWISE_CLIENT_CERT)")
        return found

    def context(self, url: str) -> ssl.SSLContext | None:
        """What to dial ``url`` with; None where it is not https. Raises :class:`UsageError`."""
        if not url.startswith("https://"):
            return None
        context = ssl.create_default_context()
        if self.ca_cert is not None:
            # This authority and no other.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            _load_authority(context, "--ca-cert", self.ca_cert)
        # A master's own certificate may be named as well as its authority's.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert is not None:
            _load_own(context, "--client-cert", self.cert, "--client-key", self.key or self.cert)
        return context

    def as_flags(self) -> tuple[str, ...]:
        """For a process that this one starts."""
        given = (("--ca-cert", self.ca_cert), ("--client-cert", self.cert), ("--client-key", self.key))
        return tuple(word for flag, path in given if path is not None for word in (flag, str(path.absolute())))


def _load_own(context: ssl.SSLContext, cert_option: str, cert: Path, key_option: str, key: Path) -> None:
    for option, path in ((cert_option, cert), (key_option, key)):
        _require_readable(option, path)

    def no_password() -> str:
        raise UsageError(f"{key_option} {key}: the key is encrypted; give one that is not, readable by its owner only")

    try:
        context.load_cert_chain(cert, key, no_password)
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise UsageError(
            f"{cert_option} {cert} and {key_option} {key} are no certificate and its key in PEM ({why})"
        ) from error


def _load_authority(context: ssl.SSLContext, option: str, path: Path) -> None:
    _require_readable(option, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise UsageError(f"{option} {path} holds no certificate in PEM ({error.reason or error})") from error


def _require_readable(option: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror or error}") from error
