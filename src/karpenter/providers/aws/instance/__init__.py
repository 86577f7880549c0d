"""Buying instances on EC2 (AWS §§9-10): what may be bought, the request, the launch templates, and what came of it.

Filters, requests, template contents and the meaning of errors are functions; ``launcher`` is the shell around them and holds the
protocol by which no lost answer is ever paid for twice. Nothing here looks after an instance once its claim names it.
"""
