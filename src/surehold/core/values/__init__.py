"""Values and their text: codec, scalars, frozen copies, diff, patch.

Nothing here knows of runs or records.
"""

from __future__ import annotations

from surehold.core.values.bounded import remember as remember
from surehold.core.values.codec import Opaque as Opaque
from surehold.core.values.codec import can_change as can_change
from surehold.core.values.codec import copied as copied
from surehold.core.values.codec import decode as decode
from surehold.core.values.codec import encode as encode
from surehold.core.values.codec import encode_tree as encode_tree
from surehold.core.values.codec import give_out as give_out
from surehold.core.values.codec import is_registered as is_registered
from surehold.core.values.codec import register_type as register_type
from surehold.core.values.codec import take_in as take_in
from surehold.core.values.codec import weigh as weigh
from surehold.core.values.frozen import DEPTH_LIMIT as DEPTH_LIMIT
from surehold.core.values.frozen import FrozenDict as FrozenDict
from surehold.core.values.frozen import FrozenList as FrozenList
from surehold.core.values.frozen import Nature as Nature
from surehold.core.values.frozen import at_path as at_path
from surehold.core.values.in_place import put_back as put_back
from surehold.core.values.list_snapshot import SeenList as SeenList
from surehold.core.values.patch import LAZY_BYTES as LAZY_BYTES
from surehold.core.values.patch import Base as Base
from surehold.core.values.patch import Items as Items
from surehold.core.values.patch import Lazy as Lazy
from surehold.core.values.patch import Written as Written
from surehold.core.values.patch import after_change as after_change
from surehold.core.values.patch import changes as changes
from surehold.core.values.patch import key_text as key_text
from surehold.core.values.patch import pointer as pointer
from surehold.core.values.patch import whole as whole
from surehold.core.values.patch import with_changes as with_changes
from surehold.core.values.rebuild import Operation as Operation
from surehold.core.values.rebuild import Rebuilt as Rebuilt
from surehold.core.values.rebuild import note_change as note_change
from surehold.core.values.rebuild import operations as operations
from surehold.core.values.rebuild import touches as touches
from surehold.core.values.usage import Usage as Usage
