"""The pure core: every decision Forbear takes, as functions of values.

Nothing here reads a clock, draws a random number, awaits, speaks SQL or HTTP; only the standard
library is imported. Times are integer milliseconds since the epoch (UTC), durations integer
milliseconds, and randomness comes in as a number drawn by the caller.
"""
