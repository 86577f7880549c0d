"""The data a machine boots with: how it finds its cluster, and what its kubelet is told (AWS §6)."""
