"""AWSNodeTemplate of v1alpha1 (API §15.3)."""

from __future__ import annotations

import pytest

from support.older_manifests import ConversionOptions, Json, convert, node_template, with_options

_FULL = {
    "httpEndpoint": "enabled",
    "httpProtocolIPv6": "disabled",
    "httpPutResponseHopLimit": 2,
    "httpTokens": "required",
}


def terms(selector: Json, field: str = "subnet") -> object:
    return convert(node_template({f"{field}Selector": selector})).at(f"spec.{field}SelectorTerms")


@pytest.mark.parametrize(
    ("family", "alias"),
    [
        (None, "al2@latest"),
        ("AL2", "al2@latest"),
        ("Bottlerocket", "bottlerocket@latest"),
        ("Windows2019", "windows2019@latest"),
        ("Windows2022", "windows2022@latest"),
    ],
)
def test_a_family_without_images_becomes_an_alias(family: str | None, alias: str) -> None:
    """API-730, API-780, API-795, API-S280, API-S281, AWS-822: the latest image of the family, AL2 where none is named."""
    converted = convert(node_template({"amiFamily": family}))
    assert converted.at("spec.amiSelectorTerms") == [{"alias": alias}]
    assert converted.at("spec.amiFamily") is None


def test_a_family_with_images_keeps_both() -> None:
    """API-731, API-781: the family says how the instance boots, the selectors which image it gets."""
    converted = convert(node_template({"amiFamily": "Bottlerocket", "amiSelector": {"aws-ids": "ami-1,ami-2"}}))
    assert converted.at("spec.amiFamily") == "Bottlerocket"
    assert converted.at("spec.amiSelectorTerms") == [{"id": "ami-1"}, {"id": "ami-2"}]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"aws-ids": "subnet-1, subnet-2"}, [{"id": "subnet-1"}, {"id": "subnet-2"}]),
        ({"aws::ids": "subnet-1"}, [{"id": "subnet-1"}]),
        ({"a": "b"}, [{"tags": {"a": "b"}}]),
        ({"a": "*"}, [{"tags": {"a": "*"}}]),
        ({"a": ""}, [{"tags": {"a": "*"}}]),
        ({"a": "b, ,c"}, [{"tags": {"a": "b"}}, {"tags": {"a": "c"}}]),
        (
            {"z": "1,2", "a": "x,y"},
            [{"tags": {"a": a, "z": z}} for a in ("x", "y") for z in ("1", "2")],
        ),
    ],
)
def test_selector_maps_become_terms(selector: Json, expected: list[Json]) -> None:
    """API-782, API-790, API-792, API-S283, AWS-821, AWS-T820, AWS-T822: a term per identifier or combination of tags."""
    assert terms(selector) == expected


def test_images_by_name_and_owner_are_combined_owners_first() -> None:
    """API-791, AWS-T821: a term for each name of each owner."""
    assert terms({"aws::name": "n1,n2", "aws::owners": "o1,o2"}, "ami") == [
        {"name": name, "owner": owner} for owner in ("o1", "o2") for name in ("n1", "n2")
    ]
    assert terms({"aws::name": "n1"}, "ami") == [{"name": "n1"}]
    assert terms({"aws::owners": "self", "a": "b"}, "ami") == [{"tags": {"a": "b"}, "owner": "self"}]


def test_ids_beside_other_keys_select_alone() -> None:
    """API-790: identifiers say it all; the other keys are named in a warning."""
    converted = convert(node_template({"amiSelector": {"aws::ids": "ami-1", "aws::name": "n"}}))
    assert converted.at("spec.amiSelectorTerms") == [{"id": "ami-1"}]
    assert len(converted.warnings) == 1


@pytest.mark.parametrize(
    ("selector", "count"),
    [({"a": ",".join(map(str, range(31)))}, "31 terms"), ({f"k{n}": "v" for n in range(21)}, "21 tags")],
)
def test_too_many_terms_or_tags_are_an_error(selector: Json, count: str) -> None:
    """API-793: v1 takes no more than thirty terms and twenty tags."""
    converted = convert(node_template({"subnetSelector": selector}))
    assert (converted.objects, count in converted.errors[0]) == ((), True)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (None, _FULL),
        ({}, _FULL),
        ({"httpTokens": "required"}, {**_FULL, "httpPutResponseHopLimit": 1}),
        ({"httpPutResponseHopLimit": 3}, {**_FULL, "httpPutResponseHopLimit": 3, "httpTokens": "optional"}),
    ],
)
def test_metadata_options_are_written_out(given: Json | None, written: Json) -> None:
    """API-785, API-786, API-S284, AWS-T823: the defaults of that time, since those of v1 differ."""
    assert convert(node_template({"metadataOptions": given})).at("spec.metadataOptions") == written


@pytest.mark.parametrize(
    ("options", "field", "value", "warnings"),
    [
        (ConversionOptions(instance_profile="p"), "instanceProfile", "p", 0),
        (ConversionOptions(node_role="r"), "role", "r", 0),
        (ConversionOptions(instance_profile="p", node_role="r"), "instanceProfile", "p", 0),
        (ConversionOptions(), "role", "${KARPENTER_NODE_ROLE}", 1),
    ],
)
def test_a_class_without_a_profile_gets_one(options: ConversionOptions, field: str, value: str, warnings: int) -> None:
    """API-783, API-821, API-810, AWS-825: the profile of the global settings, a role, or a variable to fill in."""
    converted = convert(node_template(), options=options)
    assert converted.at(f"spec.{field}") == value
    assert len(converted.warnings) == warnings


def test_the_profile_of_the_input_is_kept() -> None:
    """API-821: the profile that is asked for on the command line is for classes without one."""
    converted = convert(node_template({"instanceProfile": "mine"}), options=with_options(instance_profile="p"))
    assert (converted.at("spec.instanceProfile"), converted.at("spec.role")) == ("mine", None)


def test_plain_fields_are_copied_and_restricted_tags_dropped() -> None:
    """API-784, API-788, API-804, API-728a, AWS-820: the tag of older controllers is free now."""
    tags = {"team": "shop", "on": True, "karpenter.sh/managed-by": "x", "kubernetes.io/cluster/main": "owned"}
    copied = {"userData": "#!/bin/sh\n", "context": "c", "detailedMonitoring": True}
    content = node_template({**copied, "tags": tags})
    content["status"] = {"subnets": []}
    converted = convert(content)
    assert {name: converted.at(f"spec.{name}") for name in copied} == copied
    assert converted.at("spec.tags") == {"team": "shop", "on": "true", "karpenter.sh/managed-by": "x"}
    assert len(converted.warnings) == 1
    assert "status" not in converted.only


@pytest.mark.parametrize(
    ("size", "written"),
    [
        ("20Gi", "20Gi"),
        ("100G", "100G"),
        ("1Ti", "1Ti"),
        ("1500Mi", "2Gi"),
        ("1.5Gi", "2Gi"),
        (2**31, "2Gi"),
        ("1.5Ti", "1536Gi"),
    ],
)
def test_volume_sizes_are_rounded_up_to_whole_gi(size: object, written: str) -> None:
    """API-784."""
    device = {"deviceName": "/dev/xvda", "ebs": {"volumeSize": size, "volumeType": "gp3"}}
    converted = convert(node_template({"blockDeviceMappings": [device]}))
    assert converted.at("spec.blockDeviceMappings") == [
        {"deviceName": "/dev/xvda", "ebs": {"volumeSize": written, "volumeType": "gp3"}}
    ]
    assert len(converted.warnings) == (size != written)


def test_a_size_that_is_none_is_an_error() -> None:
    """API-831: a variable in a typed field is reported."""
    device = {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "${SIZE}"}}
    converted = convert(node_template({"blockDeviceMappings": [device]}))
    assert converted.errors == ["spec.blockDeviceMappings[0].ebs.volumeSize: '${SIZE}' is not a size such as 20Gi"]


def test_variables_in_free_text_are_kept() -> None:
    """API-831."""
    converted = convert(node_template({"subnetSelector": {"a": "${CLUSTER_NAME}"}, "userData": "join $HOST <token>"}))
    assert converted.at("spec.subnetSelectorTerms") == [{"tags": {"a": "${CLUSTER_NAME}"}}]
    assert converted.at("spec.userData") == "join $HOST <token>"


def test_ubuntu_without_images_takes_those_of_canonical() -> None:
    """API-733, API-860: the EKS bootstrap is added, as for AL2, unless the user data does all itself."""
    own = "#!/bin/sh\nkubeadm join\n"
    for user_data, family in (("", "AL2"), (own, "Custom"), ("#!/bin/sh\n/etc/eks/bootstrap.sh main\n", "AL2")):
        content = node_template({"amiFamily": "Ubuntu", "userData": user_data})
        converted = convert(content, options=with_options(kubernetes_version="1.30"))
        assert converted.at("spec.amiFamily") == family
        assert "/1.30/" in str(converted.at("spec.amiSelectorTerms"))
        assert "/dev/sda1" in str(converted.at("spec.blockDeviceMappings"))
    assert "${KUBERNETES_VERSION}" in str(convert(node_template({"amiFamily": "Ubuntu"})).at("spec.amiSelectorTerms"))


def test_an_object_without_subnets_is_refused_as_admission_would() -> None:
    """API-820."""
    converted = convert(node_template({"subnetSelector": None}))
    assert converted.objects == ()
    assert "subnetSelectorTerms" in converted.errors[0]
