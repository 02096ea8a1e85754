"""Encryption of record bodies: keys and sealing.

Nothing here knows what a body means.
"""

from __future__ import annotations

from surehold.engine.crypto.keys import Key as Key
from surehold.engine.crypto.keys import Keyring as Keyring
from surehold.engine.crypto.keys import load_keys as load_keys
from surehold.engine.crypto.sealer import CLEAR_NOTES as CLEAR_NOTES
from surehold.engine.crypto.sealer import SHREDDED as SHREDDED
from surehold.engine.crypto.sealer import Sealer as Sealer
from surehold.engine.crypto.sealer import is_clear as is_clear
from surehold.engine.crypto.sealer import key_notes as key_notes
from surehold.engine.crypto.sealer import read_note as read_note
from surehold.engine.crypto.sealer import shredding as shredding
