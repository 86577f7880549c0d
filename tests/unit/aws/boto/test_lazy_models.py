"""botocore's data files, decoded lazily: values equal those that botocore decodes."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import cast

import pytest
from botocore.loaders import JSONFileLoader, Loader
from botocore.model import ServiceModel

from karpenter.providers.aws.sdk.lazy_models import LazyModelFiles, find_error_shapes

_SERVICES = ("ec2", "sts", "iam", "ssm", "pricing", "sqs", "eks", "arc-zonal-shift", "sso", "sso-oidc")


def _file(service: str, kind: str) -> str:
    loader = Loader()
    version = loader.determine_latest_version(service, kind)
    return str(Path(Loader.BUILTIN_DATA_PATH) / service / version / kind)


@pytest.mark.parametrize("service", _SERVICES)
def test_models_and_endpoint_rules_of_every_service_are_those_of_botocore(service: str) -> None:
    for kind in ("service-2", "endpoint-rule-set-1"):
        path = _file(service, kind)
        theirs = _without_documentation(JSONFileLoader().load_file(path))
        assert json.dumps(LazyModelFiles().load_file(path)) == json.dumps(theirs)


def _without_documentation(value: object) -> object:
    """The value with empty documentation texts; a shape may also have that name."""
    if isinstance(value, dict):
        return {
            name: "" if name == "documentation" and isinstance(member, str) else _without_documentation(member)
            for name, member in value.items()
        }
    return [_without_documentation(element) for element in value] if isinstance(value, list) else value


def test_documentation_is_removed_and_shapes_of_that_name_stay(tmp_path: Path) -> None:
    value = {
        "documentation": 'a "quoted" \\ text, "documentation": "x"',
        "shapes": {"documentation": {"type": "string", "documentation": "\\"}, "last": ["documentation", 1]},
    }
    (tmp_path / "model.json").write_text(json.dumps(value, indent=2))
    assert json.dumps(LazyModelFiles().load_file(str(tmp_path / "model"))) == json.dumps(_without_documentation(value))


@pytest.mark.parametrize("name", ["endpoints", "partitions", "sdk-default-configuration", "_retry"])
def test_files_about_all_services_are_those_of_botocore(name: str) -> None:
    path = str(Path(Loader.BUILTIN_DATA_PATH) / name)
    assert json.dumps(LazyModelFiles().load_file(path)) == json.dumps(JSONFileLoader().load_file(path))


def test_operations_have_the_shapes_that_botocore_finds() -> None:
    path = _file("ec2", "service-2")
    lazy, whole = (ServiceModel(files.load_file(path), "ec2") for files in (LazyModelFiles(), JSONFileLoader()))
    assert lazy.operation_names == whole.operation_names
    for name in ("CreateFleet", "DescribeInstanceTypes", "RunInstances"):
        for side in ("input_shape", "output_shape"):
            ours, theirs = getattr(lazy.operation_model(name), side), getattr(whole.operation_model(name), side)
            assert list(ours.members) == list(theirs.members)


@pytest.mark.parametrize("service", _SERVICES)
def test_shapes_of_errors_are_those_that_botocore_finds(service: str) -> None:
    path = _file(service, "service-2")
    lazy, whole = (ServiceModel(files.load_file(path), service) for files in (LazyModelFiles(), JSONFileLoader()))
    find_error_shapes(lazy)
    expected = [(shape.name, shape.error_code) for shape in whole.error_shapes]
    assert [(shape.name, shape.error_code) for shape in lazy.error_shapes] == expected
    assert all(lazy.shape_for_error_code(code).name for _, code in expected)


def test_a_model_of_another_class_finds_its_own_error_shapes() -> None:
    class OtherModel:
        error_shapes: tuple[str, ...] = ("found by itself",)

    model = OtherModel()
    find_error_shapes(cast("ServiceModel", model))
    assert model.error_shapes == ("found by itself",)


def test_a_large_object_stays_text_until_it_is_read(tmp_path: Path) -> None:
    value = {"large": {f"name {number}": [number, {"text": "é" * 40}] for number in range(200)}, "small": {"a": 1.5}}
    (tmp_path / "model.json").write_text(json.dumps(value))
    lazy = LazyModelFiles().load_file(str(tmp_path / "model"))
    undecoded = dict.__getitem__(lazy, "large")
    assert not isinstance(undecoded, dict)
    assert lazy["large"]["name 3"] == [3, {"text": "é" * 40}]
    assert lazy["large"] is lazy["large"]
    assert "missing" not in lazy
    assert lazy.get("missing", 7) == 7
    with pytest.raises(KeyError):
        lazy["missing"]


@pytest.mark.parametrize(
    "read",
    [dict, copy.deepcopy, copy.copy, lambda lazy: {**lazy}, lambda lazy: dict(lazy.items()), lambda lazy: {} | lazy],
    ids=["dict", "deepcopy", "copy", "unpacking", "items", "union"],
)
def test_copies_have_decoded_members(tmp_path: Path, read: object) -> None:
    value = {f"name {number}": {"text": "x" * 100} for number in range(100)}
    (tmp_path / "model.json.gz").write_bytes(gzip.compress(json.dumps(value).encode()))
    lazy = LazyModelFiles().load_file(str(tmp_path / "model"))
    assert callable(read)
    assert json.loads(json.dumps(dict(read(lazy).items()))) == value


def test_members_can_be_changed_and_taken_out(tmp_path: Path) -> None:
    value = {f"name {number}": {"text": "x" * 100} for number in range(100)}
    (tmp_path / "model.json").write_text(json.dumps(value))
    lazy = LazyModelFiles().load_file(str(tmp_path / "model"))
    assert lazy.pop("name 1") == {"text": "x" * 100}
    assert lazy.pop("name 1", None) is None
    assert lazy.setdefault("name 2", {}) == {"text": "x" * 100}
    assert lazy.setdefault("new", {"text": ""}) == {"text": ""}
    assert len(list(lazy.values())) == 100
    assert lazy.popitem() == ("new", {"text": ""})
    assert lazy.popitem() == ("name 99", {"text": "x" * 100})


def test_a_large_object_equals_one_that_is_decoded(tmp_path: Path) -> None:
    value = {f"name {number}": {"text": "x" * 100} for number in range(100)}
    (tmp_path / "model.json").write_text(json.dumps(value))
    lazy, other = (LazyModelFiles().load_file(str(tmp_path / "model")) for _ in range(2))
    assert lazy == value
    assert lazy == other
    assert lazy != {**value, "more": 1}


def test_a_missing_file_is_not_loaded(tmp_path: Path) -> None:
    assert LazyModelFiles().load_file(str(tmp_path / "model")) is None
