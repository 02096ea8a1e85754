"""Read models: what the command line prints, the page renders, the API serves.

A view is read from a manager and changes nothing. Arguments, tables and templates belong to `cli`
and `web`; what the managers themselves return belongs to `engine`.
"""
