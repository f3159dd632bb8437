"""What the files of a run disprove: its requests, recordings, closes and facts against each other.

A directory whose hashes, artifacts and verdicts were all made anew still has to agree with what a
step sends and with what a clock, a connection and a log can do. In doubt nothing is said:
docs/evidence.md lists what a forger can still do.
"""
