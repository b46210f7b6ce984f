"""Certificates of brokers and clients, of an authority of their own, as files that Kafka reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key


@dataclass(frozen=True)
class TlsFiles:
    ca: Path
    server: Path
    client: Path

    @classmethod
    def make(cls, home: Path) -> Self:
        authority = trustme.CA()
        files = cls(home / "ca.pem", home / "server.pem", home / "client.pem")
        authority.cert_pem.write_to_path(str(files.ca))
        files.server.write_text("".join(_pem(authority.issue_cert("127.0.0.1"))))
        files.client.write_text("".join(_pem(authority.issue_cert("pgsluice@example.com"))))
        return files

    def broker_settings(self) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
        }


def _pem(issued: trustme.LeafCert) -> tuple[str, str]:
    """Kafka reads keys as PKCS 8 only."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    chain = b"".join(each.bytes() for each in issued.cert_chain_pems).decode()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(), chain
