"""``karpenter schema``: JSON schemas of the formats that people write or programs read."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from karpenter.cli.terminal import write_text


def schema(
    name: Annotated[
        Literal["instance-types"], typer.Argument(metavar="NAME", help="instance-types: --instance-types.")
    ],
) -> None:
    """Print a JSON schema: of the file of --instance-types."""
    import msgspec

    from karpenter.instancetypes.instance_type_file import instance_type_file_schema

    encoded = msgspec.json.format(msgspec.json.encode(instance_type_file_schema()), indent=2)
    write_text(f"{encoded.decode()}\n")
