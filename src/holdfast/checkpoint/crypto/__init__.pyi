from holdfast.checkpoint.crypto import rotation as rotation
from holdfast.checkpoint.crypto.keys import Key as Key
from holdfast.checkpoint.crypto.keys import load_keys as load_keys
from holdfast.checkpoint.crypto.sealer import CLEAR_NOTES as CLEAR_NOTES
from holdfast.checkpoint.crypto.sealer import SHREDDED as SHREDDED
from holdfast.checkpoint.crypto.sealer import Keys as Keys
from holdfast.checkpoint.crypto.sealer import Sealer as Sealer
from holdfast.checkpoint.crypto.sealer import is_clear as is_clear
