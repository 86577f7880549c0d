"""Ports of test servers are given out once, to whichever process."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from controlplane.ports import free_port


def _far_from_others(folder: Path) -> Path:
    """A counter at a number that the shared one seldom reaches: ports found here are used by no other test."""
    counter = folder / "counter"
    counter.write_text("28000")
    return counter


def test_no_two_askers_get_the_same_port(tmp_path: Path) -> None:
    counter = _far_from_others(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        ports = list(pool.map(lambda _: free_port(counter), range(200)))
    assert len(set(ports)) == 200


def test_a_port_that_is_listened_on_is_passed_over(tmp_path: Path) -> None:
    counter = _far_from_others(tmp_path)
    first = free_port(counter)
    counter.write_text(str(first - 1))
    with socket.create_server(("127.0.0.1", first)):
        assert free_port(counter) > first


def test_after_the_last_port_comes_the_first(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("31999")
    assert 17_000 <= free_port(counter) < 31_999


def test_ports_lie_below_those_the_kernel_gives_to_clients() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert free_port() < lowest
