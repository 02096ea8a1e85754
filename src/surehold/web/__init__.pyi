from surehold.web.application import app as app
from surehold.web.server import serve as serve
from surehold.web.single_file import run_file as run_file
