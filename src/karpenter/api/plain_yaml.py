"""Plain data as YAML."""

from __future__ import annotations


def to_yaml(data: object) -> str:
    """One document, members in their order, every value in full: anchors would be legal, but are unusual in a manifest."""
    import yaml  # few commands write it, and loading it takes 0.01 s

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper = type("_Plain", (dumper,), {"ignore_aliases": lambda *_: True})
    return str(yaml.dump(data, Dumper=dumper, sort_keys=False, default_flow_style=False, width=120))
