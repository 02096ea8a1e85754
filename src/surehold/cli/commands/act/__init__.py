"""Commands that change a run: resume, fork, tag, pin, answer."""
