"""``karpenter schema``, and the document about the format it describes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from karpenter.instancetypes.instance_type_file import InstanceTypeFileError, parse_instance_types

DOCUMENT = Path(__file__).parents[3] / "docs" / "instance-types.md"


@pytest.fixture
def schema() -> dict[str, Any]:
    result = CliRunner().invoke(app, ["schema", "instance-types"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


@pytest.fixture
def example() -> list[Any]:
    """The example of the document."""
    block = re.search(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert block is not None
    loaded: list[Any] = json.loads(block[1])
    return loaded


def test_the_example_of_the_document_is_read(example: list[Any]) -> None:
    (read,) = parse_instance_types(json.dumps(example).encode())
    assert (read.name, [offering.zone for offering in read.offerings]) == ("rack.large", ["hall-a", "hall-b"])


def test_the_schema_has_every_member_of_the_example_and_of_the_table(
    schema: dict[str, Any], example: list[Any]
) -> None:
    assert (schema["type"], schema["items"]) == ("array", {"$ref": "#/$defs/InstanceType"})
    types, offerings = (schema["$defs"][name]["properties"] for name in ("InstanceType", "Offering"))
    assert example[0].keys() <= types.keys()
    assert example[0]["offerings"][0].keys() <= offerings.keys()
    assert offerings["requirements"]["items"] == {"$ref": "#/$defs/Requirement"}
    documented = re.findall(r"`offerings\[\]\.(\w+)`", DOCUMENT.read_text())
    assert {name for name in offerings if name[0].islower()} == set(documented)


def test_what_the_schema_requires_the_reader_requires(schema: dict[str, Any], example: list[Any]) -> None:
    for name in schema["$defs"]["InstanceType"]["required"]:
        incomplete = [{key: value for key, value in example[0].items() if key != name}]
        with pytest.raises(InstanceTypeFileError, match=name):
            parse_instance_types(json.dumps(incomplete).encode())
    for alternatives in schema["$defs"]["Offering"]["allOf"]:
        (name,) = alternatives["anyOf"][0]["required"]
        del (incomplete := json.loads(json.dumps(example)))[0]["offerings"][0][name]
        with pytest.raises(InstanceTypeFileError, match=name):
            parse_instance_types(json.dumps(incomplete).encode())
