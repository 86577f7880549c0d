"""What selector terms ask AWS for (AWS-140 to AWS-154, AWS-191 to AWS-195).

Terms are alternatives, fields within a term go together. All ids of a list share one query, as do names of security groups; terms
by tags are a query each. Where a term gives more than its kind allows together (stored before admission refused that), id wins
over name, name over tags (AWS-052, AWS-053).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from karpenter.api.ec2_node_class import (
    AMISelectorTerm,
    CapacityReservationSelectorTerm,
    PlacementGroupSelector,
    SecurityGroupSelectorTerm,
    SubnetSelectorTerm,
)
from karpenter.providers.aws.aws_apis import ImageQuery, PlacementGroupQuery, ReservationQuery
from karpenter.providers.aws.aws_types import Ec2Filter

Filters = tuple[Ec2Filter, ...]

_ANY_VALUE = "*"
#: Whose images a name finds where the term does not say (AWS-193).
_DEFAULT_OWNERS = ("self", "amazon")
_AVAILABLE = Ec2Filter(name="state", values=("available",))
_ACTIVE = Ec2Filter(name="state", values=("active",))


def subnet_filters(terms: Iterable[SubnetSelectorTerm]) -> tuple[Filters, ...]:
    """One list of filters per DescribeSubnets call (AWS-142)."""
    ids = _distinct(term.id for term in terms if term.id)
    by_tags = [_tags(term.tags) for term in terms if not term.id]
    return (*_single_filter("subnet-id", ids), *_not_empty(by_tags))


def security_group_filters(terms: Iterable[SecurityGroupSelectorTerm]) -> tuple[Filters, ...]:
    """One list of filters per DescribeSecurityGroups call (AWS-142)."""
    ids = _distinct(term.id for term in terms if term.id)
    names = _distinct(term.name for term in terms if term.name and not term.id)
    by_tags = [_tags(term.tags) for term in terms if not term.id and not term.name]
    return (*_single_filter("group-id", ids), *_single_filter("group-name", names), *_not_empty(by_tags))


def image_queries(terms: Iterable[AMISelectorTerm], from_parameters: Sequence[str]) -> tuple[ImageQuery, ...]:
    """One query per DescribeImages call; ``from_parameters`` are ids that parameters of the terms hold (AWS-191 to AWS-195)."""
    ids = _distinct((*(term.id for term in terms if term.id), *from_parameters))
    described = (term for term in terms if not term.id and not term.ssm_parameter and (term.name or term.tags))
    return (*image_queries_by_id(ids), *(_attribute_query(term) for term in described))


def image_queries_by_id(ids: Sequence[str]) -> tuple[ImageQuery, ...]:
    """The query for images by id, whatever their owner; none without ids."""
    return tuple(ImageQuery((*filters, _AVAILABLE)) for filters in _single_filter("image-id", ids))


def reservation_query(term: CapacityReservationSelectorTerm) -> ReservationQuery:
    """The query of one term (AWS-148)."""
    if term.id:
        return ReservationQuery((term.id,), (_ACTIVE,))
    owner = _single_filter("owner-id", (term.owner_id,) if term.owner_id else ())
    criteria = _single_filter(
        "instance-match-criteria", (term.instance_match_criteria,) if term.instance_match_criteria else ()
    )
    return ReservationQuery((), (_ACTIVE, *_flat(owner), *_tags(term.tags), *_flat(criteria)))


def placement_group_query(selector: PlacementGroupSelector) -> PlacementGroupQuery:
    """The query of a selector (AWS-153)."""
    return PlacementGroupQuery(ids=(selector.id,)) if selector.id else PlacementGroupQuery(names=(selector.name or "",))


def _attribute_query(term: AMISelectorTerm) -> ImageQuery:
    name = _flat(_single_filter("name", (term.name,) if term.name else ()))
    owners = (term.owner,) if term.owner else _DEFAULT_OWNERS if term.name else ()
    return ImageQuery((*name, *_tags(term.tags), _AVAILABLE), owners)


def _tags(tags: Mapping[str, str]) -> Filters:
    """Values go as they are, so that EC2's own wildcards work within them (AWS-141)."""
    return tuple(
        Ec2Filter(name="tag-key", values=(key,))
        if tags[key] == _ANY_VALUE
        else Ec2Filter(name=f"tag:{key}", values=(tags[key],))
        for key in sorted(tags)
    )


def _single_filter(name: str, values: Sequence[str]) -> tuple[Filters, ...]:
    return ((Ec2Filter(name=name, values=tuple(values)),),) if values else ()


def _flat(filter_lists: Iterable[Filters]) -> Filters:
    return tuple(ec2_filter for filters in filter_lists for ec2_filter in filters)


def _not_empty(queries: Iterable[Filters]) -> Iterable[Filters]:
    """Without filters EC2 would answer with everything there is."""
    return (filters for filters in queries if filters)


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
