"""Writes that the tests send to a real API server and to the in-memory one: few, but each rule is broken alone by one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from karpenter.model import runtime_validation
from support import mutations
from support.server_writes import KINDS, Write

_EVERY = 5

#: Code, place and restricted label of a rule.
LoneRule = tuple[str, str, str]


def lone_rule(write: Write) -> LoneRule | None:
    """The rule that alone refuses a write; None where none or several do."""
    findings = () if write.is_status else runtime_validation.admit(KINDS[write.kind], write.wanted, write.stored)
    if len(findings) != 1:
        return None
    (finding,) = findings
    label = re.search(r'label (?:domain )?"[^"]*?((karpenter|kubernetes)[.][^"/]*(/nodepool)?)', finding.message)
    return finding.code, finding.path.partition("[")[0], label[1] if label else ""


def selected(writes: Iterable[Write]) -> Iterator[Write]:
    """Every fifth of them, and the first that each rule alone refuses."""
    seen: set[LoneRule] = set()
    for number, write in enumerate(writes):
        rule = lone_rule(write)
        if number % _EVERY == 0 or (rule is not None and rule not in seen):
            yield write
        if rule is not None:
            seen.add(rule)


def writes_for_both_servers() -> list[Write]:
    """Those of the kinds of every provider."""
    return list(selected(mutations.writes(*mutations.USUAL)))


def ec2_writes_for_both_servers() -> list[Write]:
    """Those of EC2NodeClasses."""
    return list(selected(mutations.ec2_writes(*mutations.USUAL_EC2)))
