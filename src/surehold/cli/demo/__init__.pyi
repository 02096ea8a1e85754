from surehold.cli.demo import graph as graph
from surehold.cli.demo import job as job
