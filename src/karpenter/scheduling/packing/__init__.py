"""Bin packing of demand onto new nodes: heuristics that use purchase options, and the state of one packing."""
