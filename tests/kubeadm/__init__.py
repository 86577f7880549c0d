"""The program kubeadm, for tests of join configurations."""
