"""Holdfast behind the interfaces of other frameworks, each in a module that is imported alone."""
