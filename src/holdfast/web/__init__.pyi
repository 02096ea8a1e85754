from holdfast.web.application import app as app
from holdfast.web.server import serve as serve
