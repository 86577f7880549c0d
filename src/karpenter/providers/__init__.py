"""Where instances come from: the contract every cloud fulfils, its conformance checks, and the clouds.

A provider launches, lists and ends instances and says what can be launched; it takes no decision about pods or nodes.
"""
