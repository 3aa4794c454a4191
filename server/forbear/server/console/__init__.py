"""The web console: where a person reads a case and decides it.

Server-rendered pages on one home. Reading changes nothing, deciding is one use case
(`tools/office.py`), and no tool of an agent leads here.
"""
