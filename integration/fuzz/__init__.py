"""Fuzzing by coverage: every parser and port of the project, and what its inputs may cost."""
