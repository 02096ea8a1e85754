"""Random graphs whose processes are killed, stopped and cancelled, judged by an outside file."""
