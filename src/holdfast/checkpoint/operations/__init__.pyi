from holdfast.checkpoint.operations.load_fork import OnSaveFailure as OnSaveFailure
from holdfast.checkpoint.operations.load_fork import Operations as Operations
from holdfast.checkpoint.operations.load_fork import mark_note as mark_note
from holdfast.checkpoint.operations.save import Saving as Saving
