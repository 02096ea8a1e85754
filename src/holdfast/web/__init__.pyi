from holdfast.web.application import app as app
from holdfast.web.server import serve as serve
from holdfast.web.single_file import run_file as run_file
