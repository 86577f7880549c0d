"""Termination of nodes and NodeClaims: drain and eviction, volume detachment, instance termination, and what blocks them."""
