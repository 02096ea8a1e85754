from holdfast.storage.io import resilient_io as resilient_io
from holdfast.storage.io.resilient_io import Retry as Retry
from holdfast.storage.io.resilient_io import write_file as write_file
