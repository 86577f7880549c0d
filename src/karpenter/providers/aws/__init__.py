"""The cloud provider for AWS (AWS §§1-19).

``aws_operator`` builds it and names its loops; ``aws_provider`` implements the provider contract. ``nodeclass`` resolves
EC2NodeClasses, ``instancetype`` has types, offerings and prices, ``instance`` launches, reads and terminates instances,
``interruption`` handles AWS's notices, ``userdata`` writes boot data, ``doctor`` checks an installation. All calls go through
the narrow protocols in ``aws_apis``, which ``sdk`` implements on botocore. Nothing here decides about pods or nodes.
"""
