"""At which server a load test goes, with what it takes to reach it, and that nobody else measures there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vtop.errors import VtopError
from vtop.load.progress import LoadRequest
from vtop.servers.discovery import address_of
from vtop.servers.ports import is_answered_by_another
from vtop.servers.status import ServerState, ServerStatus
from vtop.service.measuring import LOAD_TEST, Claim, Measurements
from vtop.telemetry.gpu.matching import is_here
from vtop.telemetry.scrape import ServerAccess

_ANSWERS = {ServerState.READY, ServerState.DEGRADED, ServerState.FOREIGN}


class Aim:
    """Knows the servers and how each is reached."""

    def __init__(
        self,
        statuses: Callable[[], Sequence[ServerStatus]],
        access: Callable[[ServerStatus], ServerAccess | None],
        measurements: Measurements,
    ) -> None:
        self._statuses = statuses
        self._access_to = access
        self._measurements = measurements

    def _at(self, url: str) -> ServerStatus | None:
        return next((status for status in self._statuses() if status.url.rstrip("/") == url.rstrip("/")), None)

    def access(self, url: str) -> ServerAccess | None:
        """Key and certificates of the server at an address, by reference; None where nothing is known of it."""
        status = self._at(url)
        return self._access_to(status) if status is not None else None

    def by_url(self, request: LoadRequest) -> LoadRequest:
        """A request that names an address, with the mark and the access of the server there."""
        status = self._at(request.url)
        return self._with_access(replace(request, simulated=status is not None and status.simulated))

    def at_server(self, request: LoadRequest, status: ServerStatus) -> LoadRequest:
        """A request for a known server, with its address, model, mark and access.

        Raises:
            VtopError: it is not ready, or somebody else answers at its address.
        """
        if status.state not in _ANSWERS:
            raise VtopError(f"{status.name} is {status.state.value}, not ready", "Wait until it is, or start it.")
        if is_answered_by_another(status.message):
            raise VtopError(f"{status.name}: {status.message}", "Its numbers would be somebody else's. Stop it first.")
        return self._with_access(
            replace(
                request,
                url=request.url or status.url,
                model=request.model or status.model or "",
                simulated=status.simulated,
            )
        )

    def _with_access(self, request: LoadRequest) -> LoadRequest:
        """With the key and the certificate authority of its server, where the request has none of its own."""
        access = self.access(request.url)
        if access is None:
            return request
        return replace(request, api_key=request.api_key or access.api_key, ca_file=request.ca_file or access.ca_file)

    def claim(self, request: LoadRequest) -> Claim:
        """Keeps other vtops from measuring the same server or GPU.

        Raises:
            VtopError: one of them does.
        """
        try:
            host, port = address_of(request.url)
        except ValueError:
            host, port = "", 0  # no address: the load test itself says so
        there = self._at(request.url)
        return self._measurements.claim(
            LOAD_TEST,
            f"{request.workload} on {request.server or f'{host}:{port}'}",
            servers=(f"{host}:{port}",),
            gpus=there.gpu_uuids if there is not None else None,
            local=is_here(host),
        )
