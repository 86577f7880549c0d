"""The vocabulary decisions are made in: exact quantities, the requirement algebra, taints, labels, conditions, reasons.

Values here are immutable and functions pure, so every rule can be called with two literals. Validation and defaulting of
our own kinds live here too; instance types and prices belong to ``instancetypes``, the state of a cluster to ``state``.
"""
