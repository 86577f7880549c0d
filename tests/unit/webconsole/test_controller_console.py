"""The console that the controller serves sees what its controllers know, for each audience, and says when they know nothing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from karpenter.console.console_view import ConsoleView
from karpenter.console.visible_objects import COMPLETE, Visibility
from karpenter.kube import config
from karpenter.manager_process import RunningController
from karpenter.webconsole.controller_console import ControllerSource
from support.builders import pod
from support.world import World, story


@story
async def test_the_cluster_of_the_running_controllers_is_shown_as_far_as_it_may_be_seen(world: World) -> None:
    await world.node_class()
    await world.pool()
    world.simulated()
    world.scheduled()
    await world.start()
    assert world.manager is not None
    source = ControllerSource(RunningController(world.manager, cast(Any, None)))
    following = asyncio.create_task(source.run())
    await world.waiting(pod("small", {"cpu": "1"}), pod("huge", {"cpu": "1000"}))
    await asyncio.sleep(60)
    whole = source.input_for(COMPLETE)
    assert whole is not None
    view = ConsoleView(whole)
    (row,) = view.nodes
    assert row.pool == "np"
    assert row.price_per_hour
    (left,) = view.pending
    assert left.reason.startswith("unschedulable: "), "the last pass of the controller says why"
    part = source.input_for(Visibility(pod_namespaces=frozenset({"default"})))
    assert part is not None
    seen = ConsoleView(part)
    assert (seen.nodes, seen.pools, seen.price_per_hour) == ((), (), 0.0)
    assert [left.full_name for left in seen.pending] == ["default/huge"]
    assert "np" not in seen.pending[0].reason
    following.cancel()


@story
async def test_a_process_that_does_not_lead_says_so(world: World) -> None:
    await world.start()
    assert world.manager is not None
    world.manager.informers._is_running = False
    source = ControllerSource(RunningController(world.manager, cast(Any, None)))
    assert source.input_for(COMPLETE) is None
    assert source.fault().startswith("this process does not lead")


def test_the_connection_of_a_viewer_has_their_token_and_nothing_of_the_controllers(tmp_path: Any) -> None:
    file = tmp_path / "config"
    file.write_text(
        """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: the-controllers, as: somebody}}]
"""
    )
    connection = config.with_token(config.load(str(file)), "theirs")
    assert connection._identity.available().authorization == "Bearer theirs"
    assert connection._user.as_user == ""
    assert "theirs" not in repr(connection)
