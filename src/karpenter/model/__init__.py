"""The vocabulary decisions are made in: exact quantities, the requirement algebra, taints, labels, conditions, reasons.

Values here are immutable and functions pure, so every rule can be called with two literals. Validation and defaulting of
our own kinds live here too; what machines exist and cost belongs to ``catalog``, what a cluster looks like to ``cluster``.
"""
