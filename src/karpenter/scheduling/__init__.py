"""Machines for waiting pods: who is served, what existing machines hold, what is bought and how pods share it.

``provision`` is the entry; everything else is a step of it. Prices decide among legal plans, never what is legal.
"""
