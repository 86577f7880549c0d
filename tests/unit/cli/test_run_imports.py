"""What ``karpenter run`` imports: nothing that only the simulation, the demo, tests or pages for people need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from karpenter.cli import run_command
from karpenter.settings import resolve_settings

_COMMON = (
    "import sys, karpenter.cli.main; from karpenter.cli import run_command; run_command._import_structlog(); "
    "import karpenter.manager_process"
)
_NEVER = (
    "karpenter.simulation",
    "karpenter.cli.demo",
    "karpenter.cli.render",
    "karpenter.providers.conformance",
    "starlette",
    "uvicorn",
    "rich",
    "pygments",
    "cryptography.x509",
)


def loaded(statement: str) -> list[str]:
    """Modules a fresh interpreter has after the statement."""
    script = f"{_COMMON}; {statement}; print('\\n'.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize(
    ("statement", "further"),
    [
        pytest.param("import karpenter.manager_aws", ("karpenter.providers.simulated",), id="aws"),
        pytest.param(
            "import karpenter.providers.simulated", ("karpenter.providers.aws.sdk", "botocore"), id="simulated"
        ),
    ],
)
def test_run_imports_only_what_its_provider_needs(statement: str, further: tuple[str, ...]) -> None:
    needless = [name for name in loaded(statement) if name.startswith((*_NEVER, *further))]
    assert needless == []


def test_a_process_on_aws_has_no_simulated_cloud() -> None:
    settings = resolve_settings({"provider": "aws", "cluster_name": "c"}, {})
    assert run_command._simulated_cloud(settings) is None
