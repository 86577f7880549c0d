"""What `karpenter doctor` prints below its findings."""

from __future__ import annotations

import io

import pytest

from karpenter.cli import render_doctor
from karpenter.providers.aws.doctor import DoctorFinding, FindingLevel

OK = DoctorFinding("queue", FindingLevel.OK, "queue main is there")
WARNING = DoctorFinding("quota", FindingLevel.WARNING, "is nearly used")
FAILURE = DoctorFinding("subnets", FindingLevel.FAILURE, "there are none")


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        ([OK], "1 ok, 0 warnings, 0 failures"),
        ([WARNING, FAILURE], "0 ok, 1 warning, 1 failure"),
        ([WARNING, WARNING, FAILURE, FAILURE], "0 ok, 2 warnings, 2 failures"),
    ],
)
def test_the_last_line_counts_findings_in_the_singular_and_the_plural(findings: list[DoctorFinding], line: str) -> None:
    out = io.StringIO()
    render_doctor.write(findings, out)
    assert out.getvalue().splitlines()[-1] == line
