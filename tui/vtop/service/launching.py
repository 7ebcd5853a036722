"""From a preset to the exact commands of a start, with everything that speaks against it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vtop import units
from vtop.contract import LaunchPlan
from vtop.errors import VtopError
from vtop.hardware import Card, find_card
from vtop.preset_files import Catalog, load_catalog, warnings, with_overrides
from vtop.presets import Preset
from vtop.servers.ports import address_problem, port_is_free, port_owner
from vtop.service.options import ServiceOptions
from vtop.telemetry.gpu.matching import free_gpus, shortage
from vtop.telemetry.gpu.source import GpuFrame
from vtop.vllm.launch import LaunchCommand

if TYPE_CHECKING:
    from vtop.vllm.install import Installation


@dataclass(frozen=True, slots=True)
class Launch:
    """A start, worked out."""

    preset: Preset
    commands: tuple[LaunchCommand, ...]
    installation: Installation | None
    """None for a simulated server."""
    notes: tuple[str, ...] = ()


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _with_uuids(command: LaunchCommand, by_index: Mapping[str, str]) -> LaunchCommand:
    """The GPUs of one process by UUID, from the indices in its own environment; a router has none."""
    visible = command.env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return command
    return replace(command, gpus=tuple(by_index[entry] for entry in visible.split(",") if entry in by_index))


class Launcher:
    """Knows presets, installations and cards; starts nothing itself."""

    def __init__(self, options: ServiceOptions, gpu_frame: Callable[[], GpuFrame | None]) -> None:
        self._options = options
        self.gpu_frame = gpu_frame
        """The newest GPU readings of this machine, or None."""

    def catalog(self) -> Catalog:
        """Presets as the files say now."""
        return load_catalog()

    def preset(self, name: str, overrides: Mapping[str, str] | None = None) -> Preset:
        """One preset with its overrides.

        Raises:
            UsageError: no such preset, or a wrong key or value.
        """
        return with_overrides(self.catalog().find(name), overrides or {})

    def launch(
        self,
        preset: Preset,
        name: str,
        *,
        simulated: bool | None = None,
        gpu: str | None = None,
        vllm: str | None = None,
        fault: str | None = None,
        taken_ports: Sequence[int] = (),
    ) -> Launch:
        """Works the commands out.

        Args:
            preset: with its overrides.
            name: of the server.
            simulated: None: as vtop was started.
            gpu: the simulated card; None: as vtop was started.
            vllm: the installation; None: as vtop was started, else found.
            fault: how a simulated server is to misbehave.
            taken_ports: ports of servers that vtop knows and that may not listen yet.

        Raises:
            VtopError: it cannot be started, with the reason.
        """
        simulated = self._options.simulated if simulated is None else simulated
        port, notes = self._port(preset, simulated, taken_ports)
        # Imported when something is started: the first paint of the screen does not wait for it.
        if simulated:
            from vtop.sim.commands import sim_commands

            made = sim_commands(
                preset, gpu=gpu or self._options.gpu, port=port, name=name, free_port=free_port, fault=fault
            )
            return Launch(preset, made, None, notes)
        installation = None
        if preset.server.command is None:
            from vtop.vllm.install import find_installation

            installation = find_installation(preset.server, vllm or self._options.vllm)
        indices, uuids, chosen = self._gpus(preset, installation)
        from vtop.vllm.dialect import commands as vllm_commands

        made = vllm_commands(preset, installation, port=port, gpus=indices, name=name)
        if uuids is not None:
            by_index = dict(zip(indices or (), uuids, strict=True))
            made = tuple(_with_uuids(command, by_index) for command in made)
        return Launch(preset, made, installation, notes + chosen)

    def _port(self, preset: Preset, simulated: bool, taken: Sequence[int]) -> tuple[int, tuple[str, ...]]:
        asked = preset.server.port
        if asked == "auto":
            return free_port(), ()
        if simulated and (asked in taken or not port_is_free(preset.server.host, asked)):
            other = free_port()
            return other, (f"port {asked} is taken: the simulated server listens on {other}",)
        return asked, ()

    def _gpus(
        self, preset: Preset, installation: Installation | None
    ) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None, tuple[str, ...]]:
        """CUDA indices for the child, UUIDs for matching, and what to say about the choice."""
        wanted = preset.server.gpus
        frame = self.gpu_frame()
        gpus = frame.gpus if frame is not None else ()
        if wanted is None or (installation is not None and installation.device == "cpu"):
            return None, None, ()
        if isinstance(wanted, list):
            by_index = {gpu.index: gpu.uuid for gpu in gpus}
            uuids = tuple(by_index.get(g, "") if isinstance(g, int) else g for g in wanted)
            return tuple(str(g) for g in wanted), (uuids if all(uuids) else None), ()
        if not gpus:
            return None, None, ()
        count = wanted
        share = preset.server.gpu_memory_utilization or 0.9
        choice = free_gpus(gpus, count, share)
        if choice.uuids is None:
            raise VtopError(choice.reason, "Free memory, lower gpu_memory_utilization, or name GPUs: --set gpus=[0]")
        # NVML counts in PCI order, and so does CUDA with the order that the child is given.
        indices = tuple(str(gpu.index) for uuid in choice.uuids for gpu in gpus if gpu.uuid == uuid)
        return indices, choice.uuids, (choice.reason,)

    def _memory_warnings(self, launch: Launch) -> list[str]:
        """Whether the wanted share of memory is free on the GPUs of a start, and who has it."""
        frame = self.gpu_frame()
        uuids = launch.commands[0].gpus
        if launch.installation is None or frame is None or not uuids:
            return []
        share = launch.preset.server.gpu_memory_utilization or 0.9
        lacking = shortage(frame.gpus, uuids, share)
        if lacking is None:
            return []
        return [f"{lacking.text}; --set gpu_memory_utilization={lacking.fitting_share:.2f} would fit now"]

    def card(self) -> Card | None:
        """The card that a new server would run on."""
        if self._options.simulated:
            return find_card(self._options.gpu)
        frame = self.gpu_frame()
        return find_card(frame.gpus[0].name) if frame is not None and frame.gpus else None

    def plan(self, launch: Launch, name: str, expected_s: float | None, fit: Sequence[tuple[str, str]]) -> LaunchPlan:
        """What a start would do, in the form that screens show; some milliseconds, for a thread."""
        from vtop.vllm.dialect import masked_env

        env: dict[str, str] = {}
        for command in launch.commands:
            env.update(masked_env(command))
        speaks_against = list(warnings(launch.preset))
        for command in launch.commands:
            if problem := address_problem(command.host):
                speaks_against.append(f"nothing can listen on {command.host}: {problem}")
            if not port_is_free(command.host, command.port):
                owner = port_owner(command.port)
                who = f" by {owner}" if owner is not None else ""
                speaks_against.append(f"port {command.port} is taken{who} (--set port=auto finds another)")
        speaks_against += self._memory_warnings(launch)
        return LaunchPlan(
            preset=launch.preset.name,
            name=name,
            commands=tuple(command.argv for command in launch.commands),
            env=env,
            version=launch.commands[0].version,
            installation="simulated" if launch.installation is None else str(launch.installation.source),
            simulated=launch.commands[0].simulated,
            notes=tuple(dict.fromkeys([*launch.notes, *(note for c in launch.commands for note in c.notes)])),
            warnings=tuple(speaks_against),
            fit=tuple(fit),
            expected_s=expected_s,
        )


def memory_line(frame: GpuFrame | None) -> str:
    """GPU memory that is free now, for the start screen."""
    if frame is None or not frame.gpus:
        return ""
    parts = [
        f"GPU {gpu.index}: {units.gib(gpu.memory_total_bytes - gpu.memory_used_bytes)} of "
        f"{units.gib(gpu.memory_total_bytes)}"
        for gpu in frame.gpus
        if gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None
    ]
    return ", ".join(parts)
