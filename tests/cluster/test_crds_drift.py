"""The rules exist as schema with expressions for API servers and as our functions: both must agree on many writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.harness import ControlPlane
from karpenter.api import crds
from karpenter.model import runtime_validation
from support import mutations
from support.server_writes import KINDS, Answer, RealServer, Write, in_memory, real_server
from support.writes_for_both_servers import ec2_writes_for_both_servers, writes_for_both_servers

_THREADS = 8
_SHOWN = 3


@pytest.fixture(scope="module")
def real(control_plane: ControlPlane) -> Iterator[RealServer]:
    control_plane.apply(*crds.custom_resource_definitions())
    with real_server(control_plane) as server:
        yield server


def answers(real: RealServer, writes: Sequence[Write]) -> list[Answer]:
    for write in writes:
        real.prepare(write)
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(real.answer, writes))


def disagreements(writes: Sequence[Write], theirs: Sequence[Answer]) -> list[str]:
    result = []
    for write, real_answer in zip(writes, theirs, strict=True):
        ours = in_memory(write)
        offline = () if write.is_status else runtime_validation.admit(KINDS[write.kind], write.wanted, write.stored)
        agreed = ours.stored == real_answer.stored and (write.is_status or (not offline) == real_answer.accepted)
        if not agreed:
            result.append(
                f"{json.dumps(write.wanted)}\n  over {json.dumps(write.stored)}\n  real: {real_answer}\n  ours: {ours}\n"
                f"  offline: {'; '.join(map(str, offline))}"
            )
    return result


def check_plan(real: RealServer, writes: Sequence[Write]) -> None:
    """Raises ``AssertionError`` with some of the writes that got different verdicts."""
    count = len(writes)
    theirs = answers(real, writes)
    accepted = sum(answer.accepted for answer in theirs)
    assert count / 5 < accepted < count * 4 / 5, "both verdicts must be common, or nothing is tested"
    result = disagreements(writes, theirs)
    assert not result, f"{len(result)} of {count}:\n" + "\n".join(result[:_SHOWN])


def test_expressions_and_functions_agree_on_hundreds_of_writes(real: RealServer) -> None:
    """API-033: verdicts, and stored objects."""
    check_plan(real, writes_for_both_servers())


def test_they_agree_on_hundreds_of_writes_of_classes_on_ec2(real: RealServer) -> None:
    """API-033, API-220 to API-262"""
    check_plan(real, ec2_writes_for_both_servers())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_expressions_and_functions_agree_on_thousands_of_writes(real: RealServer, seed: int) -> None:
    """API-033: verdicts, and stored objects."""
    check_plan(real, list(mutations.writes(seed, 3000)))
    check_plan(real, list(mutations.ec2_writes(seed, 2000)))
