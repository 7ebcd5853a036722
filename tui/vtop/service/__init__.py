"""The facade: all that the screens and the command line may do.

`VtopService` is imported when it is asked for: the dashboard draws its first frame without it (see `on_demand`).
"""

from typing import TYPE_CHECKING, Any

from vtop.service.options import ServiceOptions

if TYPE_CHECKING:
    from vtop.service.facade import VtopService

__all__ = ["ServiceOptions", "VtopService"]


def __getattr__(name: str) -> Any:
    if name == "VtopService":
        from vtop.service.facade import VtopService

        return VtopService
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
