from surehold.doors.loop.definition import run as run
