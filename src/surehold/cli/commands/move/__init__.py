"""Commands that move runs between files and storages: export, import, copy, ..."""
