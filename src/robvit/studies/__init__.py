"""Results of the papers, repeated: each study is a function from what it is given to a record.

robvit.reproduce("rob-table2", images=64, out="runs/rob-table2")
"""

from importlib import import_module
from pkgutil import walk_packages

from robvit.studies.common import STUDIES, StudyContext, reproduce, study
from robvit.studies.pooling import pool

for _module in walk_packages(__path__, f"{__name__}."):  # a new file in a paper's folder files its studies
    import_module(_module.name)

__all__ = ["STUDIES", "StudyContext", "pool", "reproduce", "study"]
