"""Tasks: load examples, build prompts, stop, score."""

from spsbench.tasks.catalogue import load_task as load_task
from spsbench.tasks.humaneval import begun_function as begun_function
from spsbench.tasks.prompts import MESSAGES as MESSAGES
from spsbench.tasks.prompts import TOOLS as TOOLS
from spsbench.tasks.prompts import is_prompts_file as is_prompts_file
from spsbench.tasks.prompts import read_prompts_file as read_prompts_file
from spsbench.tasks.spec import FIELD as FIELD
from spsbench.tasks.spec import FIELD_TASKS as FIELD_TASKS
from spsbench.tasks.text_lines import COLDEST as COLDEST
from spsbench.tasks.text_lines import read_lines as read_lines
from spsbench.tasks.thoughts import spoken as spoken
