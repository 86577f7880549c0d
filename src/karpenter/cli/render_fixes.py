"""The findings of ``karpenter doctor`` as a shell script that mends them, to be read and run by a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TextIO

from karpenter.providers.aws.doctor import DoctorFinding, FindingLevel

#: A fix that begins with one of these is a command as it stands.
_TOOLS = ("aws ", "kubectl ", "helm ", "karpenter ")


def write(findings: Iterable[DoctorFinding], out: TextIO) -> None:
    """The script; a fix that is no command is a comment, so that nothing is run by mistake."""
    bad = [finding for finding in findings if finding.level is not FindingLevel.OK]
    out.write("#!/bin/sh\n# Read before you run it: `karpenter doctor` has changed nothing.\n")
    out.writelines(f"{line}\n" for finding in bad for line in _lines(finding))
    if not bad:
        out.write("# nothing to correct\n")


def _lines(finding: DoctorFinding) -> Iterator[str]:
    yield ""
    yield f"# {finding.level}: {_on_one_line(f'{finding.check}: {finding.text}')}"
    yield finding.fix if finding.fix.startswith(_TOOLS) else f"# by hand: {_on_one_line(finding.fix)}"


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
