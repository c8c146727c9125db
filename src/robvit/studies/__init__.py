"""Results of the papers, repeated: each study is a function from a request to a record.

robvit.reproduce("rob-table2", images=64).save("record.json")
"""

from importlib import import_module
from pkgutil import iter_modules

from robvit.studies.common import STUDIES, Request, reproduce, study, study_record

for _found in iter_modules(__path__):  # a new file in this folder files its studies too
    import_module(f"{__name__}.{_found.name}")

__all__ = ["STUDIES", "Request", "reproduce", "study", "study_record"]
