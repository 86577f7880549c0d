"""The class's kubelet settings: which may be given, and what they come to on a type of machine (AWS §3.4)."""
