"""Certificates for servers of the tests' own: an authority, a server named `localhost`, and a client.

They have what RFC 5280 requires. Python checks that since 3.13 (`ssl.VERIFY_X509_STRICT`).
"""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "localhost"
"""The only name in the server's certificate. `127.0.0.1` leads to the same server and is not in it."""
_DAY = timedelta(days=1)


class Certificates(NamedTuple):
    """Files with certificates and keys. `other` is an authority that has signed none of them."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path
    other: Path


def make_certificates(directory: Path) -> Certificates:
    """Write them into a directory that every user of this machine may read: servers run as users of their own."""
    directory.mkdir(mode=0o755, exist_ok=True)
    key, authority = _authority("tests")
    made = Certificates(*(directory / f"{name}.pem" for name in Certificates._fields))
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.other.write_bytes(_authority("others")[1].public_bytes(serialization.Encoding.PEM))
    for name, place, key_place in ((NAME, made.server, made.server_key), ("client", made.client, made.client_key)):
        signed = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        begun = _begun(name, signed).issuer_name(authority.subject).add_extension(names, critical=False)
        begun = begun.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        place.write_bytes(begun.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        key_place.write_bytes(signed.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return made


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    own = (
        _begun(name, key)
        .issuer_name(_named(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    own = own.add_extension(usage, critical=True).add_extension(identifier, critical=False)
    return key, own.sign(key, hashes.SHA256())


def _begun(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(time.time(), UTC)
    begun = x509.CertificateBuilder().subject_name(_named(name)).public_key(key.public_key())
    return begun.serial_number(x509.random_serial_number()).not_valid_before(now - _DAY).not_valid_after(now + _DAY)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
