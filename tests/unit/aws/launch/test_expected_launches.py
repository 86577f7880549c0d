"""The expected launches that a launch batch waits for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from karpenter.api.karpenter import NodeClaim, NodeClassReference
from karpenter.providers.aws.instance.expected_launches import ExpectedLaunches
from support.launch_environment import START, LaunchEnvironment, claim, node_class, run_scenario
from support.launch_helpers import LARGE


def _claim(name: str, provider_id: str = "", kind: str = "EC2NodeClass", **meta: object) -> NodeClaim:
    made = claim(name, **meta)
    spec = msgspec.structs.replace(made.spec, node_class_ref=NodeClassReference(group="g", kind=kind, name="default"))
    status = msgspec.structs.replace(made.status, provider_id=provider_id)
    return msgspec.structs.replace(made, spec=spec, status=status)


def _expected() -> ExpectedLaunches:
    return ExpectedLaunches(lambda: START)


def test_a_claim_without_an_instance_is_expected_until_its_launch_begins() -> None:
    expected = _expected()
    expected.on_claim(None, _claim("a"))
    assert expected.has_more()
    expected.begin("uid-a")
    assert not expected.has_more()


def test_a_launch_that_failed_is_not_expected_again_when_its_claim_changes() -> None:
    """It is retried after its backoff; other launches do not wait for it."""
    expected = _expected()
    expected.on_claim(None, _claim("a"))
    expected.begin("uid-a")
    expected.on_claim(_claim("a"), _claim("a", labels={"changed": "now"}))
    assert not expected.has_more()


def test_claims_that_are_launched_or_deleted_are_not_expected() -> None:
    for after in (_claim("a", "aws:///a/i-1"), _claim("a", deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC)), None):
        expected = _expected()
        expected.on_claim(None, _claim("a"))
        expected.on_claim(_claim("a"), after)
        assert not expected.has_more()


def test_claims_of_another_provider_are_not_expected() -> None:
    expected = _expected()
    expected.on_claim(None, _claim("a", kind="KWOKNodeClass"))
    assert not expected.has_more()


def test_a_new_claim_of_the_name_of_a_launched_one_is_expected() -> None:
    expected = _expected()
    expected.on_claim(None, _claim("a"))
    expected.begin("uid-a")
    expected.on_claim(_claim("a"), _claim("a", uid="uid-again"))
    assert expected.has_more()


def test_no_state_is_kept_of_a_claim_deleted_during_its_launch() -> None:
    """``AwsProvider.create`` returns after the deletion; a claim with that uid is then treated as new."""
    expected = _expected()
    expected.on_claim(None, _claim("a"))
    expected.begin("uid-a")
    expected.on_claim(_claim("a"), None)
    expected.begin("uid-a")
    expected.on_claim(None, _claim("a"))
    assert expected.has_more()


def test_a_launch_is_expected_for_thirty_seconds_however_often_its_claim_changes() -> None:
    seconds = [0.0]
    expected = ExpectedLaunches(lambda: START + timedelta(seconds=seconds[0]))
    expected.on_claim(None, _claim("a"))
    seconds[0] = 29.9
    expected.on_claim(_claim("a"), _claim("a", labels={"changed": "now"}))
    assert expected.has_more()
    seconds[0] = 30.0
    expected.on_claim(_claim("a"), _claim("a", labels={"changed": "again"}))
    assert not expected.has_more()


def test_a_claim_that_is_never_launched_delays_other_launches_for_thirty_seconds() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        environment.launcher.expected_launches.on_claim(None, await environment.claim("stuck"))
        loop = asyncio.get_running_loop()
        took = []
        for number in range(2):
            began = loop.time()
            await environment.launcher.launch(await environment.claim(f"c{number}"), node_class(), (LARGE,))
            took.append(loop.time() - began)
            await asyncio.sleep(30 - loop.time())
        assert took[0] == pytest.approx(1.0, abs=0.1)
        assert took[1] < 0.1

    run_scenario(scenario)


def test_claims_that_a_busy_process_reconciles_one_by_one_are_launched_together() -> None:
    """Without this, a busy process launched each of a hundred NodeClaims with its own call."""

    async def scenario(environment: LaunchEnvironment) -> None:
        claims = [await environment.claim(f"c{number}") for number in range(20)]
        for each in claims:
            environment.launcher.expected_launches.on_claim(None, each)
        launches = []
        for each in claims:
            launches.append(asyncio.ensure_future(environment.launcher.launch(each, node_class(), (LARGE,))))
            await asyncio.sleep(0.3)
        await asyncio.gather(*launches)
        assert environment.ec2.calls["CreateFleet"] == 1

    run_scenario(scenario)
