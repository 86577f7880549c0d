"""Machines for waiting pods: who is served, what existing machines hold, what is bought and how pods share it.

``provision`` is the entry; everything else is a step of it. Prices decide among legal plans, never what is legal.
"""

from karpenter.decide.provision.decision import MinValuesPolicy, Options, Outlook, provision
from karpenter.decide.provision.rounds import PackingWay
from karpenter.decide.provision.search.linear import load as prepare
from karpenter.decide.provision.variants import PreferencePolicy

__all__ = ["MinValuesPolicy", "Options", "Outlook", "PackingWay", "PreferencePolicy", "prepare", "provision"]
