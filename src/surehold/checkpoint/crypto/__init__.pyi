from surehold.checkpoint.crypto import rotation as rotation
from surehold.checkpoint.crypto.keys import Key as Key
from surehold.checkpoint.crypto.keys import load_keys as load_keys
from surehold.checkpoint.crypto.sealer import CLEAR_NOTES as CLEAR_NOTES
from surehold.checkpoint.crypto.sealer import SHREDDED as SHREDDED
from surehold.checkpoint.crypto.sealer import Keys as Keys
from surehold.checkpoint.crypto.sealer import Sealer as Sealer
from surehold.checkpoint.crypto.sealer import is_clear as is_clear
