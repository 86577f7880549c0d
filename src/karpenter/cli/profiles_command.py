"""``karpenter profiles``: the defaults of the profiles lean and karpenter, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from karpenter.cli.render_common import Output, write_output


def profiles(output: Annotated[Output, typer.Option("-o", "--output", help="What to print.")] = "table") -> None:
    """Print the settings whose defaults differ between the profiles lean and karpenter (`run --profile`)."""
    from karpenter.cli import render_settings

    write_output(output, render_settings.profiles_document, render_settings.write_profiles)
