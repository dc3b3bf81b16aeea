"""TLS on the one port: who trusts whom, and what is refused before anything is served."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme

from slotwise import __version__
from slotwise.cli.daemons import _check_host, _server_tls
from slotwise.cli.main import main
from slotwise.client import Client
from slotwise.model.errors import ClusterError, UsageError
from slotwise.model.ids import WorkerId
from slotwise.protocol.codec import PROTOCOL_VERSION, Hello
from slotwise.runtime.stream import MasterStream, stream_url
from slotwise.tls import ClientTls, ServerTls
from tests.service.served import TOKEN, served, wait_for


@dataclass
class Pki:
    """An authority, a master's certificate for 127.0.0.1, a client's, and one of another authority."""

    ca: Path
    cert: Path
    key: Path
    client: Path
    stranger: Path
    other_ca: Path


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    folder = tmp_path_factory.mktemp("pki")
    made = Pki(*(folder / f"{name}.pem" for name in ("ca", "cert", "key", "client", "stranger", "other_ca")))
    ca, other = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(made.ca)
    other.cert_pem.write_to_path(made.other_ca)
    own = ca.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(made.key)
    for blob in own.cert_chain_pems:
        blob.write_to_path(made.cert, append=True)
    ca.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(made.client)
    other.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(made.stranger)
    return made


def test_the_port_speaks_tls_to_those_who_trust_it(tmp_path: Path, pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLOTWISE_CA_CERT", raising=False)
    with served(tmp_path, tls=ServerTls(pki.cert, pki.key)) as service:
        assert service.url.startswith("https://127.0.0.1:")
        for trusted in (pki.ca, pki.cert):
            with Client(service.url, TOKEN, tls=ClientTls(trusted)) as client:
                assert client.jobs() == []
        monkeypatch.setenv("SLOTWISE_CA_CERT", str(pki.ca))
        with Client(service.url, TOKEN) as client:
            assert client.jobs() == []
        for distrust in (ClientTls(), ClientTls(pki.other_ca)):
            with Client(service.url, TOKEN, tls=distrust) as client, pytest.raises(ClusterError, match="--ca-cert"):
                client.jobs()
        plain = service.url.replace("https", "http")
        with Client(plain, TOKEN) as client, pytest.raises(ClusterError, match="https://"):
            client.jobs()
        session = httpx.post(
            f"{service.url}/v1/session", json={"token": TOKEN}, verify=ClientTls(pki.ca).context(service.url) or False
        )
        assert "; secure" in session.headers["set-cookie"].lower()


def test_callers_show_a_certificate_where_it_is_asked_for(tmp_path: Path, pki: Pki) -> None:
    with served(tmp_path, tls=ServerTls(pki.cert, pki.key, pki.ca)) as service:
        with Client(service.url, TOKEN, tls=ClientTls(pki.ca, pki.client)) as client:
            assert client.jobs() == []
        for shown in (None, pki.stranger):
            with Client(service.url, TOKEN, tls=ClientTls(pki.ca, shown)) as client, pytest.raises(ClusterError):
                client.jobs()
        # A certificate is not enough.
        with Client(service.url, "wrong", tls=ClientTls(pki.ca, pki.client)) as client, pytest.raises(ClusterError):
            client.jobs()


def test_a_workers_stream_goes_through_tls(tmp_path: Path, pki: Pki) -> None:
    assert stream_url("https://host:1") == "wss://host:1/v1/workers/stream"
    with served(tmp_path, tls=ServerTls(pki.cert, pki.key, pki.ca)) as service:

        async def join(tls: ClientTls, *, expected: bool) -> None:
            hello = Hello(WorkerId("worker-tls"), PROTOCOL_VERSION, __version__)
            context = tls.context(service.url)
            stream = MasterStream(service.url, TOKEN, hello, lambda _: None, opened.set, context)
            stream.start()
            opening = asyncio.ensure_future(opened.wait())
            done, _ = await asyncio.wait([opening], timeout=20 if expected else 1)
            assert bool(done) is expected
            opening.cancel()
            await stream.close()

        for tls, expected in ((ClientTls(pki.ca, pki.client), True), (ClientTls(pki.ca), False)):
            opened = asyncio.Event()
            asyncio.run(join(tls, expected=expected))


def test_files_that_are_no_certificates_are_named(tmp_path: Path, pki: Pki) -> None:
    text = tmp_path / "text"
    text.write_text("no certificate")
    for tls, words in (
        (ServerTls(tmp_path / "gone", pki.key), "--tls-cert: cannot read .*gone"),
        (ServerTls(pki.cert, tmp_path / "gone"), "--tls-key: cannot read"),
        (ServerTls(text, pki.key), "no certificate and its key"),
        (ServerTls(pki.cert, pki.client), "no certificate and its key"),
        (ServerTls(pki.cert, pki.key, text), "--tls-client-ca .* holds no certificate"),
    ):
        with pytest.raises(UsageError, match=words):
            tls.context()
    for dialled, words in (
        (ClientTls(text), "--ca-cert .* holds no certificate"),
        (ClientTls(tmp_path / "gone"), "--ca-cert: cannot read"),
        (ClientTls(pki.ca, pki.cert), "--client-cert .* no certificate and its key"),
    ):
        with pytest.raises(UsageError, match=words):
            dialled.context("https://x")
        assert dialled.context("http://x") is None
    with pytest.raises(UsageError, match="needs its certificate"):
        ClientTls.of(key=pki.key)


@pytest.mark.parametrize("host", ["10.0.0.1", "192.168.1.5", "8.8.8.8", "fd00::1"])
def test_an_address_that_others_reach_needs_tls_or_a_word(host: str) -> None:
    with pytest.raises(UsageError, match=r"--tls-cert and --tls-key .*--insecure-http"):
        _check_host(host, secure=False)
    _check_host(host, secure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_needs_neither(host: str) -> None:
    _check_host(host, secure=False)


def test_options_that_contradict_each_other(pki: Pki) -> None:
    nothing = {"tls_cert": None, "tls_key": None, "tls_client_ca": None, "insecure_http": False}
    assert _server_tls(nothing) is None
    for wrong in ({"tls_key": pki.key}, {"tls_client_ca": pki.ca}, {"tls_cert": pki.cert, "insecure_http": True}):
        with pytest.raises(UsageError):
            _server_tls({**nothing, **wrong})


def test_the_command_line_refuses_before_it_binds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWISE_STATE_DIR", str(tmp_path / "state"))
    with pytest.raises(SystemExit) as ended:
        main(["master", "--host", "10.0.0.1", "--port", "0"])
    assert ended.value.code == 2
    assert "--insecure-http" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_tokens_are_made_listed_and_revoked_from_the_command_line(
    tmp_path: Path, pki: Pki, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "store", tls=ServerTls(pki.cert, pki.key)) as service:
        monkeypatch.setenv("SLOTWISE_MASTER", service.url)
        monkeypatch.setenv("SLOTWISE_TOKEN", TOKEN)

        def run(*argv: str, code: int = 0) -> tuple[str, str]:
            with pytest.raises(SystemExit) as ended:
                main([*argv, "--ca-cert", str(pki.ca)])
            said = capsys.readouterr()
            assert ended.value.code == code, said.err
            return said.out, said.err

        out, err = run("token", "create", "--name", "ann", "--role", "viewer")
        token = out.strip()
        assert token not in err
        assert "ann" in run("token", "list")[0]
        assert token not in run("token", "list", "--json")[0]
        assert "already" in run("token", "create", "--name", "ann", "--role", "admin", code=1)[1]
        monkeypatch.setenv("SLOTWISE_TOKEN", token)
        run("jobs")
        assert "role" in run("token", "list", code=1)[1]
        monkeypatch.setenv("SLOTWISE_TOKEN", TOKEN)
        run("token", "revoke", "ann")
        assert "no token" in run("token", "revoke", "ann", code=1)[1]
        monkeypatch.setenv("SLOTWISE_TOKEN", token)
        assert "token" in run("jobs", code=1)[1]


def test_a_worker_whose_join_token_is_revoked_loses_its_stream(tmp_path: Path) -> None:
    from slotwise.dispatcher.tokens import Role

    with served(tmp_path) as service, service.client() as admin:
        token = service.token("rack", Role.JOIN)

        async def join() -> None:
            hello = Hello(WorkerId("worker-1"), PROTOCOL_VERSION, __version__)
            opened = asyncio.Event()
            stream = MasterStream(service.url, token, hello, lambda _: None, opened.set)
            stream.start()
            await asyncio.wait_for(opened.wait(), 20)
            await asyncio.to_thread(wait_for, lambda: service.call(lambda: len(service.master._workers)) == 1)
            await asyncio.to_thread(admin.delete, "/v1/tokens/rack")
            assert stream.refused is not None
            await asyncio.wait_for(stream.refused, 20)
            assert "token" in stream.refused.result()
            await stream.close()

        asyncio.run(join())
        wait_for(lambda: service.call(lambda: not service.master._workers))
