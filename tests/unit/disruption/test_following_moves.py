"""Moves that become possible only after other moves of the same pass: no pod moves twice for them."""

from __future__ import annotations

from karpenter.model import labels
from support.applied_commands import DisruptedCluster
from support.builders import flatten
from support.disruption_cases import decide, drifted, gone, kind, on, pool, running, sold

SMALL, MEDIUM, LARGE = kind("s", 1, sold(0.1)), kind("m", 4, sold(2.0)), kind("l", 4, sold(3.6))


def placed_on(cluster: DisruptedCluster) -> dict[str, str]:
    """The node of each pod."""
    return {pod.metadata.name: pod.spec.node_name for pod in cluster.bound()}


def test_a_node_that_takes_pods_and_goes_next_goes_in_the_same_pass() -> None:
    """DIS-253: small-b alone saves too little while the large nodes of its NodePool cost something; its pod would move twice."""
    objects = (
        *(pool("np"), pool("other")),
        *(running("large-a", "m", 0.5, 0.5), running("large-b", "m", 1)),
        *(running("small-a", "s", 0.25), running("small-b", "s", 0.25)),
        *(running("room-a", "l", 3.5, pool="other"), running("room-b", "l", 3.25, pool="other")),
    )
    cluster = DisruptedCluster(*flatten(objects), types=(SMALL, MEDIUM, LARGE))
    commands = cluster.decide().commands
    cluster.carry_out(commands)
    assert {"large-a", "large-b", "small-b"} <= set(gone(commands))
    after = placed_on(cluster)
    cluster.carry_out(cluster.decide().commands)
    assert placed_on(cluster) == after


def test_following_moves_take_no_pods_to_a_drifted_node() -> None:
    """DIS-230: the drifted node cannot be replaced now, because its pod selects it by name."""
    pinned = [
        *running("drifted", "m", conditions=drifted()),
        *on("drifted", 2, node_selector={labels.HOSTNAME: "drifted"}),
    ]
    cluster = (pool("np"), pinned, running("a", "m", 1), running("b", "m", 1))
    solution = decide(*cluster, types=(MEDIUM,))
    assert len(gone(solution)) == 1
    assert gone(solution) != ["drifted"]


def test_a_node_that_goes_is_not_said_to_stay() -> None:
    """DIS-487: a move with all that follow it saves too little for the node, the first move alone does not."""
    objects = (
        *(pool("np"), pool("other"), running("large", "m", 0.75, 0.25, 0.25)),
        *(running("small-a", "s", 0.5), running("small-b", "s", 0.5), running("small-c", "s", 0.25)),
        running("room", "l", 3.25, pool="other"),
    )
    solution = decide(*objects, types=(SMALL, MEDIUM, LARGE))
    assert "room" in gone(solution)
    assert not set(gone(solution)) & {blocked.state_node.name for blocked in solution.blocked_nodes}
