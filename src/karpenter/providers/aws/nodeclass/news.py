"""What is said of a class beside its status: log lines and events, each only when there is something new to say (AWS-146)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS, Kind
from karpenter.api.meta import Wire
from karpenter.providers.aws.surroundings import Herald

KIND = cast(Kind[Wire], EC2_NODE_CLASS)


class News:
    """Remembers what was last said of each class under each topic."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], Hashable] = {}

    def is_new(self, topic: str, node_class: EC2NodeClass, value: Hashable) -> bool:
        """Whether this differs from what was said last; it counts as said from now on."""
        key = (node_class.metadata.uid, topic)
        if self._said.get(key) == value:
            return False
        self._said[key] = value
        return True

    def forget(self, uid: str) -> None:
        """A class is gone."""
        for key in [key for key in self._said if key[0] == uid]:
            del self._said[key]


class Warnings:
    """Warning events about a class, each when it begins to apply."""

    def __init__(self, herald: Herald, news: News) -> None:
        self._herald = herald
        self._news = news

    def judge(self, node_class: EC2NodeClass, reason: str, message: str) -> None:
        """Publish the warning if there is one (an empty message means that all is well) and it is news."""
        if self._news.is_new(reason, node_class, message) and message:
            self._herald.warning(KIND, node_class.metadata, reason, message)
