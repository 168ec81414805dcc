"""The command line: one short function per command; everything heavy is imported inside them."""

from spsbench.cli import options as options
from spsbench.cli import values as values
from spsbench.cli.console import hint as hint
from spsbench.cli.console import out as out
from spsbench.cli.console import present as present
from spsbench.cli.console import print_json as print_json
from spsbench.cli.console import say as say
from spsbench.cli.console import say_if_busy as say_if_busy
from spsbench.cli.interruption import continued_by as continued_by
from spsbench.cli.interruption import typed as typed
from spsbench.cli.interruption import written as written
from spsbench.cli.options import Common as Common
from spsbench.cli.options import asks as asks
from spsbench.cli.options import takes as takes
from spsbench.cli.progress import watching as watching
from spsbench.cli.report import derive as derive
from spsbench.cli.run import among_processes as among_processes
from spsbench.cli.settings import read_settings as read_settings
from spsbench.cli.settings import require_possible as require_possible
from spsbench.cli.values import concurrencies as concurrencies
from spsbench.cli.values import sampling as sampling
from spsbench.cli.values import seconds as seconds
from spsbench.cli.values import specs as specs
from spsbench.cli.values import threads as threads
