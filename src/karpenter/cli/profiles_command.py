"""``karpenter profiles``: the defaults of the profiles lean and karpenter, side by side."""

from __future__ import annotations

from karpenter.cli.output_formats import OutputOption, Printable, write_output


def profiles(output: OutputOption = "table") -> None:
    """Print the settings whose defaults differ between the profiles lean and karpenter (`run --profile`)."""
    from karpenter.cli import render_settings

    document = render_settings.profiles_document
    write_output(output, Printable(document, render_settings.write_profiles, document))
