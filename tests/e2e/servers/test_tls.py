"""TLS with a certificate of our own, and passwords that are shown nowhere."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.cli.conftest import call
from tests.servers import (
    PgBouncer,
    Redis,
    free_port,
    owned_by_postgres,
    pgbouncer_program,
    postgres,
    redis_program,
)

from holdfast import errors
from holdfast.storage.registry import open_storage
from holdfast.testing import JournalWriter

SECRET = "s3cr3t-p@ss"
QUOTED = "s3cr3t-p%40ss"


class Certificate(NamedTuple):
    """A certificate for 127.0.0.1 that signs itself, and its key."""

    certificate: Path
    key: Path


@pytest.fixture
def made(home: Path) -> Certificate:
    home.chmod(0o755)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast tests")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = Certificate(home / "server.crt", home / "server.key")
    paths.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
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


@pytest.fixture
def postgres_tls(home: Path, made: Certificate) -> Iterator[PgBouncer]:
    """PostgreSQL behind a pooler that speaks TLS: the server of the tests is built without it."""
    if pgbouncer_program() is None:
        pytest.skip("pgbouncer is not installed: make system")
    server = PgBouncer(
        postgres(),
        home / "pooler",
        "client_tls_sslmode = require",
        f"client_tls_cert_file = {made.certificate}",
        f"client_tls_key_file = {made.key}",
        users=f'"app" "{SECRET}"\n',
    ).start()
    yield server
    server.stop()


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
    postgres_tls: PgBouncer, made: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    at = f"127.0.0.1:{postgres_tls.port}/postgres"
    trusted = f"sslmode=verify-full&sslrootcert={made.certificate}"
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
    for wrong in (
        f"postgresql://app:{QUOTED}@{at}?sslmode=disable",
        f"postgresql://app:{QUOTED}@{at}?sslmode=verify-full&sslrootcert=/dev/null",
        f"postgresql://app:{QUOTED}@{at.replace('127.0.0.1', '127.0.0.2')}?{trusted}",
        f"postgresql://app:{QUOTED}-wrong@{at}?{trusted}",
    ):
        with pytest.raises(errors.StorageError) as refused:
            open_storage(f"{wrong}&connect_timeout=2")
        _shows_no_secret(refused.value, caplog.text)


def test_a_password_may_be_in_the_environment(
    postgres_tls: PgBouncer,
    redis_tls: tuple[Redis, int],
    made: Certificate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    monkeypatch.setenv("REDISCLI_AUTH", SECRET)
    for address in (
        f"postgresql://app@127.0.0.1:{postgres_tls.port}/postgres"
        f"?sslmode=verify-full&sslrootcert={made.certificate}&schema=tls",
        f"rediss://127.0.0.1:{redis_tls[1]}?ssl_ca_certs={made.certificate}",
    ):
        with open_storage(address) as storage:
            assert JournalWriter("run").save(storage)
    assert os.environ["PGPASSWORD"] == SECRET


def test_redis_over_tls_checks_the_certificate_and_hides_the_password(
    redis_tls: tuple[Redis, int], made: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    _, port = redis_tls
    address = f"rediss://:{QUOTED}@127.0.0.1:{port}?ssl_ca_certs={made.certificate}"
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
        f"rediss://:{QUOTED}-wrong@127.0.0.1:{port}?ssl_ca_certs={made.certificate}",
    ):
        with pytest.raises(errors.StorageError) as refused:
            open_storage(f"{wrong}{'&' if '?' in wrong else '?'}timeout=2&patience=0")
        _shows_no_secret(refused.value, caplog.text)
