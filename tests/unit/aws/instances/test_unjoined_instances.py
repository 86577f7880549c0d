"""Reports of instances that terminated before their node joined, with the end of their console output (AWS-858, AWS-932)."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.ec2_descriptions import InstanceInfo, InstanceState, StateReason
from karpenter.providers.aws.instance.console_output import ConsoleOutputReader
from karpenter.providers.aws.instance.unjoined_instances import UnjoinedDependencies, UnjoinedInstanceReporter
from support.described_instances import info, put
from support.launch_environment import START, LaunchEnvironment, run_scenario

BAD_KEY = StateReason(code="Client.InvalidKMSKey.InvalidState", message="the key is disabled")
WISHED = StateReason(code="Client.UserInitiatedShutdown", message="")
DEAD = InstanceState(name="terminated")
ENDING = InstanceState(name="shutting-down")
TOKEN = "abc123.0123456789abcdef"
PRINTED = f"[  12.3] cloud-init[900]: + kubeadm join 10.0.0.10:6443 --token {TOKEN}\r\nerror: no route to host\r\n"


def reporter(environment: LaunchEnvironment, *, console: bool = True) -> UnjoinedInstanceReporter:
    reader = ConsoleOutputReader(environment.ec2, environment.clock) if console else None
    return UnjoinedInstanceReporter(
        UnjoinedDependencies(environment.ec2, environment.seen, environment.recorded, environment.clock, reader)
    )


async def waiting(environment: LaunchEnvironment) -> NodeClaim:
    """A claim whose instance has not joined."""
    await environment.set_provider_id(await environment.claim("one", uid=""), "i-1")
    return await environment.kube.get(NODE_CLAIM, "one")


def given_up(claim: NodeClaim, after: timedelta = timedelta(minutes=15)) -> NodeClaim:
    created = msgspec.structs.replace(claim.metadata, creation_timestamp=START, deletion_timestamp=START + after)
    return msgspec.structs.replace(claim, metadata=created)


@pytest.mark.parametrize(
    ("described", "status", "recorded"),
    [
        pytest.param(info(state=DEAD, state_reason=BAD_KEY), {}, [("one", "InstanceEnded")], id="AWS-858"),
        pytest.param(info(state=DEAD, state_reason=WISHED), {}, [], id="wished for"),
        pytest.param(info(state=DEAD, state_reason=BAD_KEY), {"nodeName": "node-1"}, [], id="joined"),
        pytest.param(info(), {}, [], id="alive"),
    ],
)
def test_the_reason_of_an_instance_that_terminated_before_it_joined_is_reported_once(
    described: InstanceInfo, status: dict[str, str], recorded: list[tuple[str, str]]
) -> None:
    """AWS-858, AWS-T853: a KMS key without permission shows no error inside the cluster."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, described)
        await waiting(environment)
        await environment.kube.patch(NODE_CLAIM, "one", {"status": status}, subresource="status")
        terminated = reporter(environment, console=False)
        assert await terminated.reconcile() == await terminated.reconcile() == 60.0
        assert environment.recorded.warnings == recorded
        assert environment.ec2.calls["GetConsoleOutput"] == environment.ec2.calls["GetLatestConsoleOutput"] == 0

    run_scenario(scenario)


def test_no_instance_is_described_while_all_have_joined() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        await reporter(environment).reconcile()
        assert environment.ec2.calls.total() == 0

    run_scenario(scenario)


def test_the_event_of_a_terminated_instance_has_the_end_of_its_console_output_without_the_token() -> None:
    """AWS-932, AWS-913."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info(state=DEAD, state_reason=BAD_KEY))
        environment.ec2.consoles["i-1"] = PRINTED
        await waiting(environment)
        terminated = reporter(environment)
        await terminated.reconcile()
        await terminated.reconcile()
        (message,) = environment.recorded.messages
        assert message.startswith("instance i-1 ended before its node joined (Client.InvalidKMSKey.InvalidState)")
        assert message.endswith("--token [masked]\nerror: no route to host")
        assert TOKEN not in message
        assert len(message) <= 1024

    run_scenario(scenario)


def test_the_report_of_an_instance_that_shuts_down_waits_for_its_console_output() -> None:
    """AWS-932: EC2 has the last output once the instance is terminated; then the report is written with or without it."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info(state=ENDING, state_reason=BAD_KEY))
        await waiting(environment)
        terminated = reporter(environment)
        await terminated.reconcile()
        assert environment.recorded.warnings == []
        put(environment, info(state=DEAD, state_reason=BAD_KEY))
        await terminated.reconcile()
        assert environment.recorded.warnings == [("one", "InstanceEnded")]

    run_scenario(scenario)


def test_a_claim_with_a_registration_timeout_gets_the_console_output_of_its_instance_once() -> None:
    """AWS-932: the registration time-out, the usual end of an instance that cannot join."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        claim = await waiting(environment)
        unjoined = reporter(environment)
        unjoined.on_claim(claim, given_up(claim))
        await unjoined.reconcile()
        assert environment.recorded.warnings == [], "nothing is printed yet"
        environment.ec2.latest_consoles["i-1"] = PRINTED
        await unjoined.reconcile()
        unjoined.on_claim(given_up(claim), None)
        await unjoined.reconcile()
        assert environment.recorded.warnings == [("one", "InstanceNeverJoined")]
        assert environment.recorded.messages[0].startswith(
            "instance i-1 was given up before its node joined; its console output"
        )
        assert TOKEN not in environment.recorded.messages[0]

    run_scenario(scenario)


@pytest.mark.parametrize("case", ["joined", "just launched", "console not read", "without instance"])
def test_the_deletion_of_other_claims_reads_no_console_output(case: str) -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        claim = await waiting(environment)
        if case == "joined":
            claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, node_name="node-1"))
        if case == "without instance":
            claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, provider_id=""))
        going = given_up(claim, timedelta(seconds=20) if case == "just launched" else timedelta(minutes=15))
        await environment.kube.delete(NODE_CLAIM, "one")
        unjoined = reporter(environment, console=case != "console not read")
        unjoined.on_claim(claim, going)
        await unjoined.reconcile()
        assert environment.ec2.calls.total() == 0

    run_scenario(scenario)


def test_without_permission_to_read_console_output_reports_come_without_it_and_reads_stop() -> None:
    """AWS-932: if permitted."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info(state=DEAD, state_reason=BAD_KEY))
        environment.ec2.faults["GetLatestConsoleOutput"] = [AwsError("UnauthorizedOperation", "no")]
        claim = await waiting(environment)
        terminated = reporter(environment)
        await terminated.reconcile()
        assert environment.recorded.messages == [
            "instance i-1 ended before its node joined (Client.InvalidKMSKey.InvalidState): the key is disabled"
        ]
        other = msgspec.structs.replace(claim.status, provider_id="aws:///a/i-2")
        terminated.on_claim(claim, given_up(msgspec.structs.replace(claim, status=other)))
        await terminated.reconcile()
        assert environment.ec2.calls["GetLatestConsoleOutput"] == 1
        assert environment.ec2.calls["GetConsoleOutput"] == 0

    run_scenario(scenario)
