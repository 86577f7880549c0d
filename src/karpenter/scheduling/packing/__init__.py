"""Bin packing of demand onto new nodes: heuristics that use launch options, and the state of one packing."""
