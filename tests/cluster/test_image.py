"""The image: what its build puts into the file system runs as the controller, is small, and is the same each time."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane import deployed
from controlplane.harness import ControlPlane
from controlplane.process import controller
from support import image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_SOURCE = image.ROOT / "src" / "karpenter" / "providers" / "aws"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("image") / "karpenter"
    image.build(target)
    return target


def run(built: Path, *arguments: str) -> str:
    """What a program of the image prints; it has no home, no PATH and no packages but its own."""
    command = [image.interpreter(), "-s", *arguments]
    return subprocess.run(command, env=image.environment(built), capture_output=True, text=True, check=True).stdout


def test_the_entry_point_of_the_image_becomes_the_leader(built: Path, plane: ControlPlane) -> None:
    with deployed.installed(plane) as account:
        program, environment = image.program(built), image.environment(built)
        with controller(account.kubeconfig, environment=environment, program=program) as running:
            running.until(running.is_ready, "become ready")
            running.await_leading()


def test_the_image_has_the_packages_that_run_and_none_that_test_or_document(built: Path) -> None:
    names = {folder.name.partition("-")[0].lower() for folder in built.glob("*.dist-info")}
    assert {"karpenter", "botocore", "numpy", "highspy", "msgspec"} <= names
    assert not names & {"sphinx", "pytest", "moto", "mypy", "uv", "hypothesis"}
    assert not [path for path in built.rglob("tests") if path.is_dir()]


def test_every_api_of_aws_that_is_called_can_be_called_from_the_image(built: Path) -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(_SOURCE.rglob("*.py")))
    called = set(re.findall(r'(?:AwsServiceClient\(\w+, |\.service\(|_SERVICE = )"([a-z0-9-]+)"', text))
    assert called >= {"ec2", "pricing", "sqs", "eks", "iam", "ssm", "sts"}
    code = f"import botocore.session as b; [b.Session().create_client(n, region_name='eu-west-1') for n in {sorted(called)}]"
    run(built, "-c", code)


def test_bytecode_does_not_depend_on_the_time_or_place_of_the_build(built: Path) -> None:
    compiled = built / "karpenter" / "__pycache__" / "settings.cpython-311.pyc"
    assert compiled.read_bytes()[4:8] == b"\x01\0\0\0", "checked by its hash, which nobody compares"
    assert str(built).encode() not in compiled.read_bytes()
    assert b"/opt/karpenter/karpenter/settings.py" in compiled.read_bytes()


@pytest.mark.soak
def test_two_builds_are_the_same_to_the_byte(built: Path, tmp_path: Path) -> None:
    again = tmp_path / "another" / "place"
    again.parent.mkdir()
    image.build(again)
    assert dict(_contents(again)) == dict(_contents(built))


def _contents(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        yield str(path.relative_to(folder)), f"{digest} {path.stat().st_mode:o} {path.stat().st_mtime:.0f}"
