"""TLS with an authority of our own, and passwords that are shown nowhere."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.cli.conftest import call
from tests.servers import (
    PgBouncer,
    Postgres,
    Redis,
    free_port,
    owned_by_postgres,
    pgbouncer_program,
    postgres,
    redis_program,
    system_postgres,
)

from surehold import errors
from surehold.storage.registry import open_storage
from surehold.testing import JournalWriter

SECRET = "s3cr3t-p@ss"
QUOTED = "s3cr3t-p%40ss"


class Certificate(NamedTuple):
    """A certificate for 127.0.0.1, its key, and the authority that signed it."""

    authority: Path
    certificate: Path
    key: Path


@pytest.fixture
def made(home: Path) -> Certificate:
    home.chmod(0o755)
    paths = Certificate(home / "authority.crt", home / "server.crt", home / "server.key")
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signer = _named("the authority of the tests")
    root = _certificate(signer, signer, authority, authority, ca=True)
    own = _certificate(_named("a server of the tests"), signer, key, authority, ca=False)
    for path, certificate in ((paths.authority, root), (paths.certificate, own)):
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    paths.key.chmod(0o600)
    owned_by_postgres(paths.key)
    return paths


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    name: x509.Name,
    signer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signed_with: ec.EllipticCurvePrivateKey,
    *,
    ca: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if not ca:
        hosts = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return made.sign(signed_with, hashes.SHA256())


@pytest.fixture(params=["server", "pooler"])
def postgres_tls(
    request: pytest.FixtureRequest, home: Path, made: Certificate
) -> Iterator[Postgres | PgBouncer]:
    """The system's PostgreSQL, since that of the tests is built without TLS; and a pooler."""
    start = _tls_server if request.param == "server" else _tls_pooler
    server = start(home, made)
    yield server
    server.stop()


def _tls_server(home: Path, made: Certificate) -> Postgres:
    programs = system_postgres()
    if programs is None:
        pytest.skip("PostgreSQL is not installed by the system")
    access = home / "access.conf"
    access.write_text("local all all trust\nhostssl all app 127.0.0.1/32 scram-sha-256\n")
    server = Postgres(
        home / "postgres",
        "ssl = on",
        f"ssl_cert_file = '{made.certificate}'",
        f"ssl_key_file = '{made.key}'",
        f"hba_file = '{access}'",
        port=free_port(),
        programs=programs,
    ).start()
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{SECRET}'")
    return server


def _tls_pooler(home: Path, made: Certificate) -> PgBouncer:
    if pgbouncer_program() is None:
        pytest.skip("pgbouncer is not installed: make system")
    return PgBouncer(
        postgres(),
        home / "pooler",
        "client_tls_sslmode = require",
        f"client_tls_cert_file = {made.certificate}",
        f"client_tls_key_file = {made.key}",
        users=f'"app" "{SECRET}"\n',
    ).start()


@pytest.fixture
def redis_tls(home: Path, made: Certificate) -> Iterator[tuple[Redis, int]]:
    program = redis_program()
    if program is None:  # the Valkey of the tests is built without TLS
        pytest.skip("redis-server is not installed: make system")
    port = free_port()
    server = Redis(
        program,
        home / "redis",
        "appendonly yes",
        "appendfsync always",
        "bind 127.0.0.1",
        f"tls-port {port}",
        f"tls-cert-file {made.certificate}",
        f"tls-key-file {made.key}",
        "tls-auth-clients no",
        f"user default on >{SECRET} ~* &* +@all",
    )
    yield server.start(), port
    server.stop()


def _shows_no_secret(error: BaseException, log: str) -> None:
    shown: list[str] = [log]
    seen: BaseException | None = error
    while seen is not None:
        shown += [str(seen), repr(seen), *getattr(seen, "__notes__", ())]
        seen = seen.__cause__ or seen.__context__
    assert not [text for text in shown if SECRET in text or QUOTED in text]


def test_postgres_over_tls_checks_the_certificate_and_hides_the_password(
    postgres_tls: Postgres | PgBouncer, made: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    at = f"127.0.0.1:{postgres_tls.port}/postgres"
    trusted = f"sslmode=verify-full&sslrootcert={made.authority}"
    address = f"postgresql://app:{QUOTED}@{at}?{trusted}&schema=tls"
    with open_storage(address) as storage:
        assert JournalWriter("run").save(storage)
        assert SECRET not in repr(storage) and QUOTED not in repr(storage)
    told = call("doctor", "--json", "-s", address)
    assert told.code == 0
    assert SECRET not in told.out and QUOTED not in told.out
    assert told.json()["storage"].startswith("postgresql://app:***@")
    facts = {fact["name"]: fact for fact in told.json()["facts"]}
    assert facts["encryption"]["value"] == "TLS"
    elsewhere = at.replace("127.0.0.1", "else.where")
    for wrong, said in (
        (f"postgresql://app:{QUOTED}@{at}?sslmode=disable", "no encryption|SSL required"),
        (f"postgresql://app:{QUOTED}@{at}?sslmode=verify-full&sslrootcert=/dev/null", "root cert"),
        (
            f"postgresql://app:{QUOTED}@{elsewhere}?{trusted}&hostaddr=127.0.0.1",
            "does not match host name",
        ),
        (f"postgresql://app:{QUOTED}-wrong@{at}?{trusted}", "authentication failed"),
    ):
        with pytest.raises(errors.StorageError, match=said) as refused:
            open_storage(f"{wrong}&connect_timeout=2")
        _shows_no_secret(refused.value, caplog.text)


def test_a_password_may_be_in_the_environment(
    postgres_tls: Postgres | PgBouncer,
    redis_tls: tuple[Redis, int],
    made: Certificate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    monkeypatch.setenv("REDISCLI_AUTH", SECRET)
    for address in (
        f"postgresql://app@127.0.0.1:{postgres_tls.port}/postgres"
        f"?sslmode=verify-full&sslrootcert={made.authority}&schema=tls",
        f"rediss://127.0.0.1:{redis_tls[1]}?ssl_ca_certs={made.authority}",
    ):
        with open_storage(address) as storage:
            assert JournalWriter("run").save(storage)
    assert os.environ["PGPASSWORD"] == SECRET


def test_redis_over_tls_checks_the_certificate_and_hides_the_password(
    redis_tls: tuple[Redis, int], made: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    _, port = redis_tls
    address = f"rediss://:{QUOTED}@127.0.0.1:{port}?ssl_ca_certs={made.authority}"
    with open_storage(address) as storage:
        assert JournalWriter("run").save(storage)
        assert SECRET not in repr(storage) and QUOTED not in repr(storage)
    told = call("doctor", "--json", "-s", address)
    assert told.code == 0
    assert SECRET not in told.out and QUOTED not in told.out
    assert {"name": "encryption", "value": "TLS", "problem": "", "hint": ""} in told.json()["facts"]
    other = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    for wrong in (
        f"redis://:{QUOTED}@127.0.0.1:{port}",
        f"rediss://:{QUOTED}@127.0.0.1:{port}?ssl_ca_certs={other}",
        f"rediss://:{QUOTED}-wrong@127.0.0.1:{port}?ssl_ca_certs={made.authority}",
    ):
        with pytest.raises(errors.StorageError) as refused:
            open_storage(f"{wrong}{'&' if '?' in wrong else '?'}timeout=2&patience=0")
        _shows_no_secret(refused.value, caplog.text)
