"""Running the controller with the rights of `deploy/` and no others works as other tests rely on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane
from karpenter.api.kinds import CONFIG_MAP, EVENT, NODE
from karpenter.kube import config, errors

pytestmark = pytest.mark.cluster

#: An API server may trust a token for some seconds after it was revoked.
_REVOKED_SECONDS = 30.0


@pytest.fixture
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


async def test_the_account_may_do_what_deploy_says_from_the_first_moment(account: Account) -> None:
    async with account.client() as client:
        assert (await client.list(NODE)).items == ()
    assert [(call.verb, call.resource, call.status) for call in account.calls()][-1] == ("list", "nodes", 200)


async def test_a_client_whose_token_is_revoked_goes_on_with_the_next_one(account: Account, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text(account.token_file.read_text())
    account.renew()
    async with account.client() as client:
        await client.list(NODE)
    old = account.plane.kubeconfig_with("old", {"tokenFile": str(kept)})
    deadline = time.monotonic() + _REVOKED_SECONDS
    while await is_known(old):
        assert time.monotonic() < deadline, "the server still knows the token"


async def is_known(kubeconfig: str) -> bool:
    async with config.connect(config.load(kubeconfig)) as client:
        try:
            await client.list(NODE)
        except errors.Unauthorized:
            return False
    return True


async def test_what_is_forbidden_fails_the_test(plane: ControlPlane) -> None:
    with pytest.raises(AssertionError) as raised, deployed.installed(plane) as account:  # noqa: PT012
        async with account.client() as client:
            with pytest.raises(errors.Forbidden):
                await client.list(EVENT)
            with pytest.raises(errors.NotFound):
                await client.get(CONFIG_MAP, "missing", "kube-system")
    lines = str(raised.value).splitlines()
    assert len(lines) == 2
    assert 'cannot list resource "events"' in lines[1]


async def test_what_an_earlier_test_was_forbidden_is_not_held_against_the_next(plane: ControlPlane) -> None:
    with pytest.raises(AssertionError), deployed.installed(plane) as account:  # noqa: PT012
        async with account.client() as client:
            with pytest.raises(errors.Forbidden):
                await client.list(EVENT)
    with deployed.installed(plane) as account:
        assert any(call.is_refused for call in plane.calls(deployed.USER))
        assert not any(call.is_refused for call in account.calls())


def test_the_environment_is_that_of_a_pod_of_the_deployment() -> None:
    environment = deployed.environment()
    assert environment["POD_NAMESPACE"] == "kube-system"
    assert environment["CPU_REQUESTS"] == "1000"
    assert environment["MEMORY_LIMIT"] == str(2**30)
