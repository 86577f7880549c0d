"""Machines on EC2 (AWS §§1-19): classes resolved into subnets, images and profiles, types with prices, launches, interruptions.

What depends on nothing but its inputs (capacities, requirements, user data, requests, filters) is functions; what talks to AWS
does so through the narrow ports in ``ports``, whose implementation over boto3 is in ``boto``. No decision about pods or nodes.
"""
