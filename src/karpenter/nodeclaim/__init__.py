"""The NodeClaim controllers: life cycle (launch, registration, initialization, liveness), expiration, drift, hydration,
consistency and garbage collection.

``lifecycle`` runs most of them as subreconcilers of one pass, so that a claim has one writer. Every pass works on the claim as it
is now: all caches can be rebuilt from the API server and the cloud after a restart.
"""
