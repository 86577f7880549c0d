"""Which volumes are attached to which node, from events (DIS-540)."""

from __future__ import annotations

from karpenter.api.meta import ObjectMeta
from karpenter.api.storage import VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec
from karpenter.state import ClusterState


def attachment(name: str, node: str) -> VolumeAttachment:
    source = VolumeAttachmentSource(persistent_volume_name=f"pv-{name}")
    return VolumeAttachment(metadata=ObjectMeta(name=name), spec=VolumeAttachmentSpec(node_name=node, source=source))


def names(state: ClusterState, node: str) -> list[str]:
    return [volume_attachment.metadata.name for volume_attachment in state.attachments_on(node)]


def test_a_nodes_volumes_are_those_attached_to_it() -> None:
    state = ClusterState()
    for volume_attachment in (attachment("b", "n1"), attachment("a", "n1"), attachment("c", "n2")):
        state.set_attachment(volume_attachment)
    assert names(state, "n1") == ["a", "b"]
    assert names(state, "n2") == ["c"]
    assert names(state, "n3") == []


def test_a_volume_that_changes_or_moves_is_known_once() -> None:
    state = ClusterState()
    state.set_attachment(attachment("a", "n1"))
    state.set_attachment(attachment("a", "n1"))
    assert names(state, "n1") == ["a"]
    state.set_attachment(attachment("a", "n2"))
    assert (names(state, "n1"), names(state, "n2")) == ([], ["a"])


def test_a_volume_that_went_is_forgotten_and_may_go_twice() -> None:
    state = ClusterState()
    state.set_attachment(attachment("a", "n1"))
    state.remove_attachment("a")
    state.remove_attachment("a")
    assert names(state, "n1") == []
