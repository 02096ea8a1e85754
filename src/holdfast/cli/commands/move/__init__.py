"""Commands that move runs: export, import, copy, migrate."""
