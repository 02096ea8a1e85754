from surehold.storage.io import resilient_io as resilient_io
from surehold.storage.io.resilient_io import Retry as Retry
from surehold.storage.io.resilient_io import write_file as write_file
