"""Host ports: which pods may share a node (S-069, S-090, S-123, SCH-415 to SCH-419)."""

from __future__ import annotations

import pytest

from karpenter.api.core import Container, ContainerPort, Pod
from karpenter.model import labels
from support.applied_plans import PlannedCluster
from support.builders import (
    claim,
    daemon_set,
    details,
    existing,
    left,
    new_types,
    node_and_claim,
    node_pool,
    owner,
    plan,
    pod,
    replaced,
    sizes,
    wanted,
)

#: Number, protocol and address of a port of the host.
Port = tuple[int, str, str]
WEB: Port = (8080, "TCP", "")


def listening(*ports: Port, **fields: object) -> Container:
    return Container(
        ports=tuple(ContainerPort(container_port=80, host_port=n, protocol=p, host_ip=ip) for n, p, ip in ports),
        **fields,
    )


def on_port(name: str, *ports: Port, **spec: object) -> Pod:
    return pod(name, containers=(listening(*(ports or (WEB,))),), **spec)


def daemon_on_port(*ports: Port, **spec: object) -> object:
    result = daemon_set("d", **spec)
    template = replaced(
        result.spec.template,
        spec=replaced(result.spec.template.spec, containers=(listening(*(ports or (WEB,))),)),
    )
    return replaced(result, spec=replaced(result.spec, template=template))


def test_two_pods_on_one_port_need_two_nodes() -> None:
    """S-069, batch after batch"""
    cluster = PlannedCluster(node_pool())
    assert sizes(cluster.batch(on_port("p"), on_port("q"))) == [1, 1]
    assert sizes(cluster.batch(on_port("r"))) == [1]
    assert cluster.per_node() == [1, 1, 1]


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        pytest.param(WEB, WEB, True, id="S-069"),
        pytest.param(WEB, (8081, "TCP", ""), False, id="other-number"),
        pytest.param(WEB, (8080, "UDP", ""), False, id="S-123-protocol"),
        pytest.param(WEB, (8080, "", ""), True, id="tcp-is-the-default"),
        pytest.param((8080, "TCP", "10.0.0.1"), (8080, "TCP", "10.0.0.2"), False, id="S-123-addresses"),
        pytest.param((8080, "TCP", "10.0.0.1"), (8080, "TCP", "10.0.0.1"), True, id="one-address"),
        pytest.param(WEB, (8080, "TCP", "10.0.0.1"), True, id="S-123-any"),
        pytest.param((8080, "TCP", "0.0.0.0"), (8080, "TCP", "10.0.0.1"), True, id="S-123-zeros"),
        pytest.param((8080, "TCP", "::"), (8080, "TCP", "fd00::1"), True, id="SCH-416-any-v6"),
        pytest.param((8080, "TCP", "::"), (8080, "TCP", "10.0.0.1"), True, id="SCH-416-v6-and-v4"),
        pytest.param((0, "TCP", ""), (0, "TCP", ""), False, id="SCH-415-none"),
    ],
)
def test_ports_collide_by_number_protocol_and_address(one: Port, other: Port, collide: bool) -> None:
    """S-123, SCH-416: on new nodes as on those that exist."""
    there = node_and_claim("n", {"cpu": "4"})
    assert sizes(plan(node_pool(), on_port("p", one), on_port("q", other))) == ([1, 1] if collide else [2])
    bound = on_port("p", one, node_name="n")
    assert existing(plan(node_pool(), there, bound, on_port("q", other))) == ({} if collide else {"n": 1})
    assert existing(plan(node_pool(), there, on_port("p", one), on_port("q", other))) == {"n": 1 if collide else 2}


@pytest.mark.parametrize(
    ("fields", "collide"),
    [
        pytest.param({"init_containers": (listening(WEB, restart_policy="Always"),)}, True, id="sidecar"),
        pytest.param({"init_containers": (listening(WEB),)}, False, id="init"),
        pytest.param({"containers": (listening(), listening(WEB))}, True, id="second-container"),
        pytest.param(
            {"containers": (Container(ports=(ContainerPort(container_port=8080),)),), "host_network": True},
            True,
            id="host-network",
        ),
        pytest.param(
            {"containers": (Container(ports=(ContainerPort(container_port=8080),)),)}, False, id="own-network"
        ),
    ],
)
def test_every_container_that_keeps_running_takes_its_ports(fields: dict[str, object], collide: bool) -> None:
    """SCH-415 with its Beyond; kube-scheduler counts init containers no more than this."""
    result = plan(node_pool(), on_port("p"), pod("q", **fields))
    assert sizes(result) == ([1, 1] if collide else [2])


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_has_given_its_port_back(phase: str) -> None:
    """SCH-419"""
    done = on_port("p", node_name="n", status={"phase": phase})
    assert existing(plan(node_pool(), node_and_claim("n", {"cpu": "4"}), done, on_port("q"))) == {"n": 1}


def test_pods_on_ports_share_nodes_with_any_other() -> None:
    result = plan(node_pool(), on_port("p"), on_port("q"), pod("a"), pod("b"))
    assert (sum(sizes(result)), len(sizes(result))) == (4, 2)


def test_a_port_that_every_daemon_takes_is_never_free() -> None:
    """S-090, SCH-417: and the text says why."""
    result = plan(node_pool(), daemon_on_port(), on_port("p"), pod("q"))
    assert (left(result), sizes(result)) == (["p"], [1])
    assert details(result) == (
        "pod hostport conflicts with existing hostport configuration "
        "(existing=IP: 0.0.0.0, Port: 8080, Proto: TCP, pod=IP: 0.0.0.0, Port: 8080, Proto: TCP)"
    )


def test_a_daemon_blocks_only_the_types_it_runs_on() -> None:
    """SCH-418"""
    only_amd = daemon_on_port(node_selector={labels.ARCH: "amd64"})
    assert new_types(plan(node_pool(), only_amd, on_port("p"))) == ["arm"]
    assert new_types(plan(node_pool(), only_amd, on_port("p", (9090, "TCP", "")))) == ["small"]


def test_a_daemon_blocks_only_the_pools_it_runs_on() -> None:
    """SCH-418"""
    pools = [node_pool("a", labels={"team": "a"}), node_pool("b", labels={"team": "b"}, weight=10)]
    result = plan(pools, daemon_on_port(node_selector={"team": "b"}), on_port("p"), pod("q"))
    assert sorted(new_nodeclaim.node_pool for new_nodeclaim in result.new_claims) == ["a", "b"]


def test_a_daemon_still_to_come_has_its_port_on_an_existing_node() -> None:
    """SCH-419 Beyond: the reference looks at bound pods only, and the daemon would find its port taken."""
    there = node_and_claim("n", {"cpu": "4"})
    assert existing(plan(there, daemon_on_port(), on_port("p"))) == {}
    assert existing(plan(there, daemon_on_port(), on_port("p", (9090, "TCP", "")))) == {"n": 1}


def test_a_daemon_that_runs_already_is_not_in_its_own_way() -> None:
    """SCH-417: its port is taken once, and another pod may have another port."""
    there = node_and_claim("n", {"cpu": "4"})
    bound = on_port("d-1", node_name="n", meta={"owner_references": (owner("DaemonSet", "d"),)})
    assert existing(plan(there, daemon_on_port(), bound, on_port("p", (9090, "TCP", "")))) == {"n": 1}
    assert existing(plan(there, daemon_on_port(), bound, on_port("p"))) == {}


def test_a_node_on_its_way_keeps_ports_apart_as_well() -> None:
    """S-069, S-060"""
    coming = claim("c", None, [wanted(labels.INSTANCE_TYPE, "In", "default")], requests={"cpu": "100m", "pods": "1"})
    result = plan(node_pool(), coming, on_port("p"), on_port("q"))
    assert (list(existing(result).values()), sizes(result)) == ([1], [1])


def test_ports_and_limits_together_leave_the_right_number_waiting() -> None:
    cluster = PlannedCluster(node_pool(limits={"nodes": 2}))
    result = cluster.batch([on_port(f"p{n}") for n in range(4)], pod("free"))
    assert (len(left(result)), sorted(sizes(result))) == (2, [1, 2])
    assert "node limits have been exhausted" in details(result)
