"""kubeadm itself, for tests of what nodes are given to join with."""
