"""Random programs around recorded calls, stopped in every way, judged by an outside file."""
