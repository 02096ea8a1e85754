"""Surehold behind the interfaces of other frameworks, each imported on its own."""
