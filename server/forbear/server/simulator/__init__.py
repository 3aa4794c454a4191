"""A provider made from its own contract, on this machine, to try things on before any real call.

`source` finds the contract, `copies` makes the copy that points here, `routes` tells which request
arrived, `making` makes answers that provably mean what is wanted, `faults` are what goes wrong on
purpose, `provider` keeps jobs and records, and `trial` takes every action through it.
"""
