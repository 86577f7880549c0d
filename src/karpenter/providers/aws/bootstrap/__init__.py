"""Self-managed clusters (kubeadm): how an instance that EKS does not know joins (AWS §21).

``bootstrap_token`` describes tokens, ``token_issuer`` keeps one per NodeClaim in the cluster for as long as it is needed, and
``join_rules`` says which EC2NodeClasses want one. The user data itself is rendered in ``userdata``.
"""
