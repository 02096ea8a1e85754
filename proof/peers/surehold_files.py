"""Surehold on files."""

from __future__ import annotations

from functools import partial

from proof.peers import surehold_store

save_for_ever = partial(surehold_store.save_for_ever, scheme="file")
look = partial(surehold_store.look, scheme="file")
begin = partial(surehold_store.begin, scheme="file")
resume = partial(surehold_store.resume, scheme="file")
