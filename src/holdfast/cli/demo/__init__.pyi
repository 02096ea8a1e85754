from holdfast.cli.demo import graph as graph
from holdfast.cli.demo import job as job
