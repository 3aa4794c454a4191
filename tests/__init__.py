"""A regular package, so that no other `tests` on the path can stand in front of it."""
