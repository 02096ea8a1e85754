"""Execution on the journal: the state graph, and what is built on it."""
