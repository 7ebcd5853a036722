"""The facade: all that the screens and the command line may do."""

from vtop.service.facade import VtopService
from vtop.service.options import ServiceOptions

__all__ = ["ServiceOptions", "VtopService"]
