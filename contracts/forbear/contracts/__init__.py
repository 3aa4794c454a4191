"""Contracts of real providers, as data: `use = "NAME"`, `forbear contract add NAME`."""
