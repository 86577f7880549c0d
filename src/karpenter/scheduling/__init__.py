"""Nodes for waiting pods: which pods are eligible, what existing nodes hold, what is bought and how pods share it.

``solver.solve`` is the entry; everything else is a step of it. Prices decide among legal plans, never what is legal.
"""
