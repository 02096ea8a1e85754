"""Commands that read: runs, log, show, cat, diff, blame, status, stats, watch, ..."""
