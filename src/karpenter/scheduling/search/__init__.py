"""The price search, in arrays: what is for sale, the least it could cost, columns, and restarts.

It proposes; packings carry out what rules and limits agree to. Nothing here decides what is legal.
"""
