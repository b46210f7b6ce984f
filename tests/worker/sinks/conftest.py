"""What tests of several sinks stand on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme


@pytest.fixture
def authority() -> trustme.CA:
    """Issues certificates that only ``ca_file`` vouches for."""
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")
