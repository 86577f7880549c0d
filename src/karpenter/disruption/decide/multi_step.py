"""Merges moves that follow each other into commands that lead straight to their end.

After the moves of a pass further moves may become possible: a node that took pods may become unnecessary itself. Executed one
after the other, some pods would move twice. The result says which nodes go, what is launched and where each pod ends up. Each
step is valid and saves money, hence so does the result. Candidates that share replacements on the way, or of which one took pods
of another, are one command, unless what they share is gone at the end and each part is worth it by itself. So a node that took
pods and is worth too little by itself goes together with the nodes that these pods are from, if all of them are worth it
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeSelectorRequirementWithMinValues
from karpenter.disruption.decide.balanced import MoveScoring
from karpenter.disruption.decide.command import Candidate, Command, ConsolidationType, DisruptionReason, saving_per_hour
from karpenter.disruption.decide.connected_parts import connected_candidates
from karpenter.disruption.decide.pod_arrivals import PodArrivals
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.model.connected_groups import connected_groups
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.virtual_pods import is_virtual_pod


@dataclass(frozen=True, eq=False)
class CommandPricing:
    """How commands are scored, and the pods that arrive on existing nodes before them."""

    scoring: MoveScoring
    arrivals: PodArrivals

    def after(self, commands: Iterable[Command]) -> CommandPricing:
        """The pricing of commands that follow these."""
        placements = (placed for command in commands for placed in command.placed_on_existing)
        return replace(self, arrivals=self.arrivals.after(placements))


def composed_commands(
    candidates: Sequence[Candidate], final_snapshot: ClusterSnapshot, steps: Sequence[Command], pricing: CommandPricing
) -> tuple[Command, ...] | None:
    """The commands that lead to ``final_snapshot``, in which all steps are done.

    ``candidates`` are those that may go, as they are now. None where the way is unknown: where minValues want several
    kinds of a node that the steps took for one kind and filled up.
    """
    after = {view.key: view for view in final_snapshot.nodes}
    gone = [candidate for candidate in candidates if candidate.key not in after]
    planned = {
        replacement.name: replacement
        for step in steps
        for replacement in step.replacements
        if replacement.name in after
    }
    host_of = {pod.metadata.uid: key for key, view in after.items() for pod in view.pods}
    moving = {
        candidate.key: [(pod, host_of.get(pod.metadata.uid, "")) for pod in candidate.reschedulable_pods]
        for candidate in gone
    }
    inside: dict[str, list[Pod]] = {name: [] for name in planned}
    for destinations in moving.values():
        for pod, host in destinations:
            if host in inside:
                inside[host].append(pod)
    final: dict[str, NewNodeClaim] = {}
    for name, new_nodeclaim in planned.items():
        fixed = _resized_claim(new_nodeclaim, inside[name])
        if fixed is None:
            return None
        final[name] = fixed if fixed.claim is new_nodeclaim.claim else _with_surplus(fixed, pricing.arrivals)
    names = {key: view.name for key, view in after.items()}
    commands: list[Command] = []
    for group in _dependent_groups(gone, moving, steps):
        whole = _command(group, moving, final, names, pricing)
        parts: list[Command] = []
        for part in connected_candidates(whole):
            parts.append(_command(part, moving, final, names, pricing.after(parts)))
        chosen = parts if all(_is_worth_it(part, pricing.scoring) for part in parts) else [whole]
        commands += chosen
        pricing = pricing.after(chosen)
    return tuple(commands)


def _is_worth_it(command: Command, scoring: MoveScoring) -> bool:
    """Whether the command saves something by itself, enough for its NodePools."""
    saving = command.saving_per_hour
    return saving is not None and saving > 0 and scoring.are_acceptable(command.scores, saving)


def _resized_claim(planned: NewNodeClaim, placed_pods: Sequence[Pod]) -> NewNodeClaim | None:
    """The node for all these pods. With other pods than it was made for it is what the steps took it for, and nothing else."""
    virtual = tuple(filter(is_virtual_pod, planned.pods))
    if _uids(placed_pods) == _uids(planned.pods) - _uids(virtual):
        return replace(planned, pods=(*placed_pods, *virtual))
    spec = planned.claim.spec
    if any(requirement.min_values is not None for requirement in spec.requirements):
        return None
    exact = {labels.INSTANCE_TYPE: planned.instance_types[0]}
    exact |= {key: min(form.values) for key, form in planned.cheapest_offering.requirements.items() if form.values}
    asked = [requirement for requirement in spec.requirements if requirement.key not in exact]
    asked += [NodeSelectorRequirementWithMinValues(key=key, operator="In", values=(v,)) for key, v in exact.items()]
    before = res.add(*(pods.pod_requests(pod) for pod in planned.pods))
    requests = res.add(res.parse_resources(spec.resources.requests), *(pods.pod_requests(pod) for pod in placed_pods))
    requests = res.subtract(requests, before)
    sized = changed(
        spec.resources, requests=res.resources_to_wire({name: amount for name, amount in requests.items() if amount})
    )
    claim = changed(planned.claim, spec=changed(spec, requirements=tuple(asked), resources=sized))
    return replace(planned, claim=claim, instance_types=planned.instance_types[:1], pods=tuple(placed_pods))


def _with_surplus(claim: NewNodeClaim, arrivals: PodArrivals) -> NewNodeClaim:
    """The claim with what CPU beyond its baseline costs with the pods it is for now."""
    return replace(claim, cpu_surplus_per_hour=arrivals.cpu_surplus_of(claim))


def _uids(of: Iterable[Pod]) -> set[str]:
    return {pod.metadata.uid for pod in of}


def _dependent_groups(
    removed: Sequence[Candidate], destinations: Mapping[str, Sequence[tuple[Pod, str]]], steps: Sequence[Command]
) -> list[list[Candidate]]:
    """The nodes that go. Those that paid for the same new nodes, share one, or took pods on the way are together."""
    by_key = {candidate.key: candidate for candidate in removed}
    groups = connected_groups([*by_key], _dependencies(by_key.keys(), destinations, steps))
    return [[by_key[key] for key in group] for group in groups]


def _dependencies(
    removed: Set[str], destinations: Mapping[str, Sequence[tuple[Pod, str]]], steps: Sequence[Command]
) -> Iterator[tuple[str, str]]:
    """Pairs of nodes, by key, of which one is there or goes because of the other."""
    launched = {replacement.name for step in steps for replacement in step.replacements}
    for step in steps:
        hosts = [placed.node_key for placed in step.placed_on_existing if placed.node_key in removed]
        connected = [*(replacement.name for replacement in step.replacements), *hosts]
        yield from ((key, connected[0]) for key in connected)
        yield from ((candidate.key, connected[0]) for candidate in step.candidates if connected)
    for key in removed:
        yield from ((host, key) for _, host in destinations[key] if host in launched)


def _command(
    group: Sequence[Candidate],
    destinations: Mapping[str, Sequence[tuple[Pod, str]]],
    replacements_by_name: Mapping[str, NewNodeClaim],
    names: Mapping[str, str],
    pricing: CommandPricing,
) -> Command:
    going = [destination for candidate in group for destination in destinations[candidate.key]]
    hosts = sorted({host for _, host in going})
    replacements = tuple(replacements_by_name[host] for host in hosts if host in replacements_by_name)
    placed = tuple(
        PlacedPods(host, names[host], tuple(pod for pod, at in going if at == host))
        for host in hosts
        if host and host not in replacements_by_name
    )
    price = sum(new_nodeclaim.cost_per_hour for new_nodeclaim in replacements)
    price += pricing.arrivals.added_cpu_surplus(group, placed)
    return Command(
        reason=DisruptionReason.UNDERUTILIZED,
        candidates=tuple(group),
        replacements=replacements,
        placed_on_existing=placed,
        consolidation_type=ConsolidationType.MULTI if len(group) > 1 else ConsolidationType.SINGLE,
        saving_per_hour=saving_per_hour(group, price),
        scores=pricing.scoring.scores(group, price),
    )
