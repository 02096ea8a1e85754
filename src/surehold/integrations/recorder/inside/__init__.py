"""The part inside a recorded program: it asks a tape about the program's requests.

This room uses the standard library only, and imports relatively: `surehold exec` loads it by its
path into programs whose environment has no Surehold.
"""

from __future__ import annotations

from .finder import install as install
from .messages import SECRET_HEADERS as SECRET_HEADERS
from .messages import Asked as Asked
from .messages import Divergence as Divergence
from .messages import HttpAnswer as HttpAnswer
from .messages import TapeClaim as TapeClaim
from .messages import answer_frame as answer_frame
from .messages import answer_from as answer_from
from .messages import asked_from as asked_from
from .remote import serve_frames as serve_frames
from .selection import Selection as Selection
from .selection import canonical as canonical
from .selection import differing_kinds as differing_kinds
from .selection import key_of as key_of
from .selection import mask as mask
from .selection import masked as masked
from .selection import model_of as model_of
from .tapes import Exchange as Exchange
from .tapes import Recorder as Recorder
from .tapes import Tape as Tape
from .tapes import begin as begin
from .tapes import own_state as own_state
from .tapes import playing as playing
