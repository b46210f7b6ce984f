"""What the page takes from others is what its lock file says."""

from __future__ import annotations

from tests.console.server.page.vendored import FOLDER, LOCK, digest, read_lock


def test_every_vendored_file_is_the_one_that_the_lock_names() -> None:
    locked = {file["file"]: file["sha256"] for package in read_lock()["packages"] for file in package["files"]}
    there = {path.name: digest(path) for path in FOLDER.iterdir() if path != LOCK}
    assert there == locked


def test_every_package_comes_with_its_licence() -> None:
    for package in read_lock()["packages"]:
        assert package["license"] in ("MIT", "Apache-2.0")
        assert f"LICENSE.{package['name']}" in {file["file"] for file in package["files"]}


def test_no_file_of_the_page_holds_script_or_style_that_the_policy_refuses() -> None:
    index = (FOLDER.parent / "index.html").read_text()
    assert "<style" not in index
    assert "style=" not in index
    assert "<script>" not in index
