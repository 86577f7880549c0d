"""What passes over pods that need room alone say, for the nodes of one base (`ReschedulingBase`).

Such a pass depends on how many pods there are of each kind, on the open nodes that have room for one of them, and on
launch options. Most nodes have pods like those of another one, and few have room for any themselves: so one answer serves all of
them. It is looked up by a number for the pods and a set of nodes, without asking node by node what is free. Where few nodes
have room, it outlives the decision (`DecisionMemory.pass_facts`).
"""

from __future__ import annotations

from collections.abc import Sequence

from karpenter.instancetypes.type_sets import members
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex, NodeSet
from karpenter.scheduling.offerings.launch_options import LaunchOptionIndex
from karpenter.scheduling.whatif.counted_pass import CountedGroup, count_pass
from karpenter.scheduling.whatif.movers import Movers
from karpenter.scheduling.whatif.pass_facts import PassFacts, facts_of_counts

#: Of pods that more nodes than that have room for, facts are kept for one base only: the next has other room nearly always.
_MAX_NODES_WITH_ROOM = 128


class RoomFacts:
    """Facts about questions to one set of nodes. ``unlimited``: the launch options without limits of NodePools.

    ``node_numbers``: numbers of nodes in keys of facts, of all bases of a decision.
    """

    def __init__(
        self,
        nodes: ExistingNodeIndex,
        unlimited: LaunchOptionIndex,
        memory: DecisionMemory,
        node_numbers: dict[ExistingNode, int],
    ) -> None:
        self._nodes = nodes
        self._unlimited = unlimited
        self._memory = memory
        self._node_numbers = node_numbers
        #: All nodes, open or not, that could take one of the pods.
        self._room_by_movers: dict[Movers, NodeSet] = {}
        #: By the number of the pods and the nodes that count.
        self._facts: dict[tuple[int, NodeSet], PassFacts] = {}
        #: Numbers of sets of nodes in keys of facts: most questions are about one of a few sets.
        self._room_numbers: dict[NodeSet, int] = {}

    def with_room_for(self, movers: Movers) -> NodeSet:
        """All nodes that could take one of the pods."""
        with_room = self._room_by_movers.get(movers)
        if with_room is None:
            with_room = 0
            for group in movers.groups:
                with_room |= self._nodes.with_free(group.signature.requests)
            self._room_by_movers[movers] = with_room
        return with_room

    def number_of(self, movers: Movers) -> int:
        """The same number for pods that need room alone if they are as many of the same kinds."""
        return self._memory.pods_number(movers)

    def of(
        self, parts: Sequence[Movers], open_nodes: NodeSet, removed: NodeSet, options: LaunchOptionIndex
    ) -> PassFacts:
        """The facts about the pods of all parts together, which go to open nodes and to what the options offer.

        ``removed``: the nodes they are on.
        """
        with_room = 0
        for movers in parts:
            with_room |= self.with_room_for(movers)
        nodes = open_nodes & with_room
        is_large = nodes.bit_count() > _MAX_NODES_WITH_ROOM
        # What is left of limits differs from node to node and pass to pass, and a large set without these nodes is their own:
        # such facts are never asked for again.
        if options is not self._unlimited or (is_large and with_room & removed):
            return self._counted(self._memory.joined_counts(parts), nodes, options)
        number = self._memory.joined_number(parts)
        facts = self._facts.get((number, nodes))
        if facts is None:
            facts = self._counted(self._memory.joined_counts(parts), nodes, options) if is_large else None
            facts = self._facts[number, nodes] = facts or self._remembered(parts, number, nodes)
        return facts

    def _remembered(self, parts: Sequence[Movers], number: int, nodes: NodeSet) -> PassFacts:
        """The facts of an earlier decision about a few nodes, if nothing of these has changed."""
        memory, options = self._memory, self._unlimited
        key = (number, id(options), self._room_number(nodes))
        facts = memory.pass_facts.get(key)
        if facts is None:
            facts = self._counted(memory.joined_counts(parts), nodes, options)
            memory.pass_facts.put(key, facts)
        return facts

    def _counted(self, counts: Sequence[CountedGroup], nodes: NodeSet, options: LaunchOptionIndex) -> PassFacts:
        return facts_of_counts(options, count_pass(counts, self._nodes, nodes, options))

    def _room_number(self, nodes: NodeSet) -> int:
        number = self._room_numbers.get(nodes)
        if number is None:
            by_node = tuple(map(self._node_number, members(nodes)))
            number = self._room_numbers[nodes] = self._memory.room_number(by_node)
        return number

    def _node_number(self, position: int) -> int:
        node, numbers = self._nodes.nodes[position], self._node_numbers
        number = numbers.get(node)
        if number is None:
            number = numbers[node] = self._memory.node_number(node)
        return number
