"""Taking over a cluster that Karpenter runs: what would happen to its objects."""
