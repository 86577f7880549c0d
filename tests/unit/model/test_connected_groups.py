"""Groups of connected things."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from karpenter.model.connected_groups import connected_groups


@pytest.mark.parametrize(
    ("links", "groups"),
    [
        ([], [["a"], ["b"], ["c"], ["d"]]),
        ([("c", "a")], [["a", "c"], ["b"], ["d"]]),
        ([("a", "d"), ("b", "c"), ("d", "b")], [["a", "b", "c", "d"]]),
        ([("d", 1), ("b", 1), ("a", 2)], [["a"], ["b", "d"], ["c"]]),
        ([("b", "b")], [["a"], ["b"], ["c"], ["d"]]),
    ],
    ids=["no links", "a link", "a chain", "over what is no member", "to itself"],
)
def test_members_that_links_connect_are_together_in_the_order_of_members(
    links: list[tuple[Hashable, Hashable]], groups: list[list[str]]
) -> None:
    assert connected_groups(["a", "b", "c", "d"], links) == groups
