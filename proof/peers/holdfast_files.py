"""Holdfast on files."""

from __future__ import annotations

from functools import partial

from proof.peers import holdfast_store

save_for_ever = partial(holdfast_store.save_for_ever, scheme="file")
look = partial(holdfast_store.look, scheme="file")
begin = partial(holdfast_store.begin, scheme="file")
resume = partial(holdfast_store.resume, scheme="file")
