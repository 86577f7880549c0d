"""Bootstrap tokens from the launch to the registration of their NodeClaim, in virtual time on an API server in memory."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest
from structlog.testing import capture_logs

from karpenter.api.control_plane import Secret
from karpenter.api.core import ConfigMap
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import CONFIG_MAP, KINDS, NODE_CLAIM, SECRET
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import Forbidden
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapSettings, TokenDelivery
from karpenter.providers.aws.bootstrap.join_resolver import JoinResolver
from karpenter.providers.aws.bootstrap.token_issuer import TokenIssuer
from karpenter.providers.aws.instance.launch_plan import UserDataInputs
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed
from karpenter.simulation import virtual_time as virtual
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support import launch_environment
from support.fake_ec2 import FakeEc2
from support.kubeadm_user_data import FIELD_REPORT
from support.launch_environment import LaunchEnvironment, StaticLaunchInputs, ec2_type

_TYPES: tuple[InstanceType, ...] = (ec2_type("m5.large"),)
_ANNOTATED = {"karpenter.k8s.aws/bootstrap": "kubeadm"}


class _Templates(StaticLaunchInputs):
    """User data that contains the token and no labels."""

    def user_data(self, inputs: UserDataInputs) -> bytes:
        join = inputs.join
        return f"{join.claim} {join.token and join.token.value} {join.token_parameter}".encode() if join else b"plain"


@dataclass
class Parameters:
    """SSM."""

    values: dict[str, str] = field(default_factory=dict)

    async def get_parameter(self, name: str) -> str:
        return self.values[name]

    async def put_secure_parameter(self, name: str, value: str) -> None:
        self.values[name] = value

    async def delete_parameter(self, name: str) -> None:
        if self.values.pop(name, None) is None:
            raise AwsError("ParameterNotFound", "there is none")


@dataclass
class KubeadmEnvironment(LaunchEnvironment):
    """A launch environment whose classes join with kubeadm; ``characters`` replaces the random characters of tokens."""

    settings: BootstrapSettings = field(default_factory=BootstrapSettings)
    characters: Iterator[str] | None = None
    ssm: Parameters = field(default_factory=Parameters)

    def restart(self) -> None:
        choice = (lambda alphabet: next(self.characters)) if self.characters is not None else None
        chosen = {} if choice is None else {"choice": choice}
        self.issuer = TokenIssuer(self.kube, self.settings, "c", self.clock, **chosen)
        self.join_source = JoinResolver(self.issuer, self.ssm, self.settings, "c")
        self.inputs = _Templates()
        super().restart()

    async def signed(self) -> None:
        """Sign cluster-info for all tokens, as the controller manager does."""
        while True:
            data = {f"jws-kubeconfig-{name.removeprefix('bootstrap-token-')}": "x" for name in await self.names()}
            await self.kube.patch(CONFIG_MAP, "cluster-info", {"data": data}, "kube-public")
            await asyncio.sleep(0.5)

    async def secrets(self) -> tuple[Secret, ...]:
        return (await self.kube.list(SECRET, "kube-system")).items

    async def names(self) -> list[str]:
        return [secret.metadata.name for secret in await self.secrets()]

    async def launch(self, claim: NodeClaim, node_class: EC2NodeClass | None = None):
        return await self.launcher.launch(claim, node_class or kubeadm_class(), _TYPES)


def _server(clock: virtual.LoopClock) -> MemoryServer:
    return MemoryServer(clock, kinds=(*KINDS.values(), SECRET))


def kubeadm_class(user_data: str = FIELD_REPORT, annotations: dict[str, str] = _ANNOTATED) -> EC2NodeClass:
    plain = launch_environment.node_class({"ami_family": "Custom", "user_data": user_data})
    return launch_environment.replaced_annotations(plain, annotations)


def run_scenario(
    scenario: Callable[[KubeadmEnvironment], Awaitable[None]], settings: BootstrapSettings | None = None, **more: object
) -> None:
    """Run a scenario with a token signer."""

    async def main(clock: virtual.LoopClock) -> None:
        kube = MemoryKube(_server(clock))
        environment = KubeadmEnvironment(clock, kube, FakeEc2(clock), settings=settings or BootstrapSettings(), **more)
        await kube.create(CONFIG_MAP, ConfigMap(metadata=ObjectMeta(name="cluster-info", namespace="kube-public")))
        signer = asyncio.create_task(environment.signed())
        try:
            await scenario(environment)
        finally:
            signer.cancel()

    virtual.run_virtual(main, launch_environment.START)


def _data(secret: Secret) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in secret.data.items()}


def test_a_launch_creates_one_secret_as_kubeadm_does() -> None:
    """AWS-905 to AWS-908, AWS-T919: the whole Secret; it expires after the TTL, in UTC, in seconds."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        claim = await environment.claim()
        await environment.launch(claim)
        (secret,) = await environment.secrets()
        data = _data(secret)
        assert re.fullmatch("[a-z0-9]{6}", data.pop("token-id"))
        assert re.fullmatch("[a-z0-9]{16}", data.pop("token-secret"))
        assert data == {
            "description": "Karpenter, cluster c, NodeClaim one",
            "expiration": "2026-01-05T09:15:00Z",
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        }
        assert secret.type == "bootstrap.kubernetes.io/token"
        assert secret.metadata.labels == {
            "app.kubernetes.io/managed-by": "karpenter",
            "karpenter.sh/nodeclaim": "one",
            "karpenter.sh/nodepool": "default",
        }
        assert [(owner.kind, owner.uid) for owner in secret.metadata.owner_references] == [
            ("NodeClaim", claim.metadata.uid)
        ]

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("user_data", "annotations"),
    [
        pytest.param(FIELD_REPORT, {}, id="AWS-T901: no annotation"),
        pytest.param("#!/bin/sh\njoin ${CLUSTER_ENDPOINT}", _ANNOTATED, id="AWS-923: no token in the text"),
    ],
)
def test_without_annotation_or_without_use_there_is_no_token(user_data: str, annotations: dict[str, str]) -> None:
    """AWS-T901, AWS-923."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        await environment.launch(await environment.claim(), kubeadm_class(user_data, annotations))
        assert await environment.names() == []

    run_scenario(scenario)


def test_a_token_is_deleted_at_registration_and_after_a_permanent_launch_failure() -> None:
    """AWS-T902, AWS-T903, AWS-911."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        claim = await environment.claim()
        await environment.launch(claim)
        assert environment.issuer.holds_token("one")
        await environment.join_source.revoke("one")  # type: ignore[attr-defined]
        assert await environment.names() == []
        environment.ec2.free = dict.fromkeys(
            ((("m5.large", zone, kind)) for zone in "ab" for kind in ("spot", "on-demand")), 0.0
        )
        with pytest.raises(InsufficientCapacity):
            await environment.launch(await environment.claim("two"))
        assert await environment.names() == []
        assert environment.ec2.templates == {}

    run_scenario(scenario)


def test_garbage_collection_deletes_tokens_that_no_claim_needs() -> None:
    """AWS-T904, AWS-911: NodeClaims that are deleted, registered or recreated lose it; a waiting NodeClaim keeps it."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        claims = {name: await environment.claim(name) for name in ("gone", "registered", "renamed", "waiting")}
        for claim in claims.values():
            await environment.launch(claim)
        registered = Condition(type="Registered", status="True")
        status = msgspec.structs.replace(claims["registered"].status, conditions=(registered,))
        other = msgspec.structs.replace(claims["renamed"].metadata, uid="another")
        left = (
            claims["waiting"],
            msgspec.structs.replace(claims["registered"], status=status),
            msgspec.structs.replace(claims["renamed"], metadata=other),
        )
        await environment.issuer.sweep(left)
        (secret,) = await environment.secrets()
        assert secret.metadata.labels["karpenter.sh/nodeclaim"] == "waiting"

    run_scenario(scenario)


def test_a_restart_between_token_and_launch_uses_the_same_token() -> None:
    """AWS-T905, AWS-912: exactly one Secret, until less than five minutes of it remain."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        claim = await environment.claim()
        first = await environment.issuer.token_for(claim, kubeadm_class())
        environment.restart()
        assert await environment.issuer.token_for(claim, kubeadm_class()) == first
        await asyncio.sleep(timedelta(minutes=10, seconds=1).total_seconds())
        environment.restart()
        assert await environment.issuer.token_for(claim, kubeadm_class()) != first
        assert len(await environment.names()) == 1

    run_scenario(scenario)


def test_each_claim_has_its_own_token_template_and_fleet() -> None:
    """AWS-T906, AWS-914, AWS-915: per claim; the templates are deleted when the fleets are answered."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        claims = [await environment.claim(name) for name in ("one", "two", "three")]
        await asyncio.gather(*(environment.launch(claim) for claim in claims))
        assert len(await environment.names()) == 3
        assert environment.ec2.calls["CreateFleet"] == environment.ec2.calls["CreateLaunchTemplate"] == 3
        assert environment.ec2.templates == {}

    run_scenario(scenario)


def test_claims_of_one_window_share_token_template_and_fleet() -> None:
    """AWS-T907, AWS-916; the next window has another token, and the old one is deleted when no NodeClaim waits."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        claims = [await environment.claim(name) for name in ("one", "two", "three")]
        await asyncio.gather(*(environment.launch(claim) for claim in claims))
        (first,) = await environment.names()
        (request,) = environment.ec2.fleets
        assert request.target_capacity_specification.total_target_capacity == 3
        assert len(environment.ec2.templates) == 1
        await asyncio.sleep(600)
        await environment.launch(await environment.claim("four"))
        assert len(await environment.names()) == 2
        await environment.issuer.sweep(claims)
        assert first in await environment.names()
        await environment.issuer.sweep(())
        assert first not in await environment.names()
        assert len(await environment.names()) == 1

    run_scenario(scenario, BootstrapSettings(token_delivery=TokenDelivery.WINDOW))


def test_the_token_of_the_next_window_exists_before_its_first_claim() -> None:
    """AWS-916: only if the current window has one, and only once."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        await environment.issuer.prepare_next_window(["default"])
        assert await environment.names() == []
        node_class = kubeadm_class()
        claim = await environment.claim("one")
        await environment.launch(claim, node_class)
        (first,) = await environment.names()
        for _ in range(2):
            await environment.issuer.prepare_next_window([node_class.metadata.name])
        (following,) = set(await environment.names()) - {first}
        await environment.issuer.sweep([claim])
        assert following in await environment.names(), "a future window has a token"
        await asyncio.sleep(600)
        await environment.launch(await environment.claim("two"), node_class)
        assert set(await environment.names()) == {first, following}

    run_scenario(scenario, BootstrapSettings(token_delivery=TokenDelivery.WINDOW))


def test_a_parameter_holds_the_token_and_is_deleted_with_it() -> None:
    """AWS-917: user data has the name only."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        await environment.launch(await environment.claim())
        (secret,) = await environment.secrets()
        data = _data(secret)
        assert environment.ssm.values == {"/karpenter/c/one": f"{data['token-id']}.{data['token-secret']}"}
        await environment.join_source.revoke("one")  # type: ignore[attr-defined]
        assert (environment.ssm.values, await environment.names()) == ({}, [])

    run_scenario(scenario, BootstrapSettings(token_delivery=TokenDelivery.PARAMETER))


def test_external_join_mode_creates_no_token() -> None:
    """AWS-918."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        await environment.launch(await environment.claim())
        assert await environment.names() == []

    run_scenario(scenario, BootstrapSettings(token_delivery=TokenDelivery.EXTERNAL))


def test_a_token_id_in_use_is_replaced_by_another() -> None:
    """AWS-T908, AWS-909."""
    taken, free = "a" * 6 + "b" * 16, "c" * 6 + "d" * 16

    async def scenario(environment: KubeadmEnvironment) -> None:
        await environment.issuer.token_for(await environment.claim(), kubeadm_class())
        token = await environment.issuer.token_for(await environment.claim("two"), kubeadm_class())
        assert token.value == "cccccc.dddddddddddddddd"
        assert await environment.names() == ["bootstrap-token-aaaaaa", "bootstrap-token-cccccc"]

    run_scenario(scenario, characters=iter(taken + taken + free))


def test_a_token_that_cannot_be_created_fails_the_launch_before_createfleet() -> None:
    """AWS-909: BootstrapTokenFailed."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        await environment.launch(await environment.claim())
        with pytest.raises(LaunchFailed) as refused:
            await environment.launch(await environment.claim("two"))
        assert refused.value.reason == "BootstrapTokenFailed"
        assert len(environment.ec2.fleets) == 1

        async def forbidden(*args: object, **more: object) -> None:
            raise Forbidden("secrets is forbidden")

        environment.kube.list = forbidden
        with pytest.raises(LaunchFailed, match="making a bootstrap token: secrets is forbidden"):
            await environment.launch(msgspec.structs.replace(launch_environment.claim("three")))
        assert len(environment.ec2.fleets) == 1

    run_scenario(scenario, characters=iter(("a" * 6 + "b" * 16) * 6))


def test_a_launch_without_a_token_signer_warns_and_continues() -> None:
    """AWS-910: five seconds at most."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        await environment.kube.delete(CONFIG_MAP, "cluster-info", "kube-public")
        begin = environment.clock.now()
        await environment.issuer.token_for(await environment.claim(), kubeadm_class())
        assert environment.clock.now() - begin < timedelta(seconds=5.5)

    async def main(clock: virtual.LoopClock) -> None:
        kube = MemoryKube(_server(clock))
        await kube.create(CONFIG_MAP, ConfigMap(metadata=ObjectMeta(name="cluster-info", namespace="kube-public")))
        await scenario(KubeadmEnvironment(clock, kube, FakeEc2(clock)))

    with capture_logs() as lines:
        virtual.run_virtual(main, launch_environment.START)
    assert [line["log_level"] for line in lines if "no signature" in line["event"]] == ["warning"]


def test_no_text_about_a_token_contains_its_secret() -> None:
    """AWS-T918, AWS-913: logs, events, claims, template names and everything printable of a whole launch."""

    async def scenario(environment: KubeadmEnvironment) -> None:
        names: list[str] = []
        created = environment.ec2.create_launch_template

        async def recorded(name, *args):
            names.append(name)
            return await created(name, *args)

        environment.ec2.create_launch_template = recorded
        with capture_logs() as lines:
            await environment.launch(await environment.claim())
            (secret,) = await environment.secrets()
            await environment.join_source.revoke("one")  # type: ignore[attr-defined]
        hidden = _data(secret)["token-secret"]
        claims = msgspec.json.encode((await environment.kube.list(NODE_CLAIM)).items).decode()
        visible_texts = (
            repr(lines),
            repr(secret),
            claims,
            repr(names),
            repr(environment.recorded),
            str(environment.ec2.fleets),
        )
        assert len(names) == 1
        assert any(line["event"] == "created bootstrap token" for line in lines)
        for text in visible_texts:
            assert hidden not in text
            assert base64.b64encode(hidden.encode()).decode() not in text

    run_scenario(scenario)
