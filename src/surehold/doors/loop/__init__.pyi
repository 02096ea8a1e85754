from surehold.doors.loop.definition import Run as Run
from surehold.doors.loop.definition import run as run
