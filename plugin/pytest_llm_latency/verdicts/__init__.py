"""Judging: verdicts, their causes, and the rules that every step shares."""
