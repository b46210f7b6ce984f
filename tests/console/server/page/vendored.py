"""What the page takes from others, fetched from npm; ``make vendor`` runs it and renews the files.

``lock.json`` beside the files says of each package its version, its licence and the digest of what npm serves, and of each file
its own. To take another version, change it there together with the package's digest; the files' digests are written anew.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.servers.program import REPOSITORY

FOLDER = REPOSITORY / "console" / "server" / "page" / "vendor"
LOCK = FOLDER / "lock.json"

Lock = dict[str, Any]


def read_lock() -> Lock:
    lock: Lock = json.loads(LOCK.read_text())
    return lock


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fetch(package: Lock, folder: Path) -> Path:
    """The package's archive. Ends the program when it is not the one that the lock names."""
    name = f"{package['name']}@{package['version']}"
    packed = subprocess.run(["npm", "pack", "--silent", name], cwd=folder, check=True, capture_output=True, text=True)
    archive = folder / packed.stdout.strip().splitlines()[-1]
    if digest(archive) != package["sha256"]:
        sys.exit(f"{name} has the digest {digest(archive)}, and {LOCK} says {package['sha256']}")
    return archive


def renew(package: Lock, archive: Path) -> None:
    """Writes the package's files. Browsers know no names of packages, so modules name each other by their files here."""
    with tarfile.open(archive) as content:
        for file in package["files"]:
            member = content.extractfile(f"package/{file['from']}")
            assert member is not None
            text = member.read().decode()
            lines = [line for line in text.splitlines(keepends=True) if not line.startswith("//# sourceMappingURL=")]
            target = FOLDER / file["file"]
            target.write_text("".join(lines).replace('from"preact"', 'from"./preact.js"'))
            file["sha256"] = digest(target)


def main() -> None:
    lock = read_lock()
    with tempfile.TemporaryDirectory() as temporary:
        for package in lock["packages"]:
            renew(package, fetch(package, Path(temporary)))
    LOCK.write_text(json.dumps(lock, indent=2) + "\n")


if __name__ == "__main__":
    main()
