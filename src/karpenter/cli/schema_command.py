"""``karpenter schema``: JSON schemas of the formats that people write or programs read."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from karpenter.cli.terminal import write_text


def schema(
    name: Annotated[
        Literal["instance-types", "plan", "plan-difference", "scenario"],
        typer.Argument(
            metavar="NAME",
            help="instance-types: the file of --instance-types; plan: plan -o json; plan-difference: plan --diff -o json; "
            "scenario: the file of simulate --scenario.",
        ),
    ],
) -> None:
    """Print a JSON schema of a file that people write or of output that programs read."""
    import msgspec

    from karpenter.cli.plan_schemas import plan_difference_schema, plan_schema
    from karpenter.instancetypes.instance_type_file import instance_type_file_schema
    from karpenter.simulator.scenario_file import scenario_schema

    schemas = {
        "instance-types": instance_type_file_schema,
        "plan": plan_schema,
        "plan-difference": plan_difference_schema,
        "scenario": scenario_schema,
    }
    write_text(f"{msgspec.json.format(msgspec.json.encode(schemas[name]()), indent=2).decode()}\n")
