"""A preset in the words of one vLLM version: argument vector and environment of every process."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from vtop.errors import VtopError
from vtop.presets import Disaggregated, Preset, ServerSpec
from vtop.secrets import looks_secret
from vtop.vllm.arguments import gpus_needed, server_arguments, shutdown_timeout_s, spans_machines, told
from vtop.vllm.disaggregation import shared_folder, transfer_config, transfer_env, transfer_notes
from vtop.vllm.install import Installation, release
from vtop.vllm.launch import LaunchCommand
from vtop.vllm.router import COMMAND as ROUTER_COMMAND
from vtop.vllm.router import find_router, router_argv
from vtop.vllm.versions import flags_of, hypothetical_installation, known_versions

READY_TIMEOUT_S = 1800.0
_LOOPBACK = "127.0.0.1"
_MODULE = "vllm.entrypoints.openai.api_server"
_ENGINE_TIMEOUT_SINCE = (0, 14, 0)
"""From here on the API server gives up after 600 s while the engine loads on and holds the GPU."""
MASK = "***"

_BASE_ENV: Mapping[str, str] = {
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
_UNSET_ENV = (
    "PROMETHEUS_MULTIPROC_DIR",  # a stale directory mixes old counters into the page
    "VLLM_PORT",  # moves internal ports onto each other
    "FORCE_COLOR",
    "PYTHONHOME",
    "__PYVENV_LAUNCHER__",
)


def any_free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def commands(
    preset: Preset,
    installation: Installation | None,
    *,
    port: int,
    gpus: tuple[str, ...] | None = None,
    name: str,
    free_port: Callable[[], int] = any_free_port,
) -> tuple[LaunchCommand, ...]:
    """Every process of a preset: one, or the servers behind a router and the router last.

    Args:
        preset: with its overrides.
        installation: which vLLM; None only with a command of the preset's own.
        port: where clients connect.
        gpus: indices (in PCI order) or UUIDs; None leaves the choice to vLLM.
        name: the server's name.
        free_port: finds a port for each further process of a pair.

    Raises:
        VtopError: this version cannot do what the preset asks, or the router is missing.
    """
    spec = preset.server
    if spec.command is not None:
        return (_own_command(spec, port, gpus, name),)
    if installation is None:
        raise VtopError("no vLLM installation to start with", "Name one: --vllm DIRECTORY")
    installation, notes = _with_flags(installation)
    pick = _distinct(free_port, port)
    if spec.disaggregated is not None:
        return _pair(spec, spec.disaggregated, installation, notes, port=port, gpus=gpus, name=name, free_port=pick)
    if spec.replicas > 1:
        return _replicas(spec, installation, notes, port=port, gpus=gpus, free_port=pick)
    needed = gpus_needed(spec)
    if gpus is not None and not spans_machines(spec.args):
        if len(gpus) < needed:
            raise VtopError(
                f"the preset needs {needed} GPUs (tensor x pipeline x data parallel) and was given {len(gpus)}",
                f"--set gpus={needed}, or --set tensor_parallel={len(gpus)}",
            )
        if len(gpus) > needed:
            notes = [*notes, f"{len(gpus)} GPUs are reserved, {needed} is used: set tensor_parallel or data_parallel"]
    return (_server(spec, installation, notes, port=port, gpus=gpus),)


def masked_env(command: LaunchCommand) -> dict[str, str]:
    """The environment that a command adds, with secrets as `***`."""
    env = {key: MASK if looks_secret(key) else value for key, value in command.env.items()}
    if command.api_key is not None:
        env |= dict.fromkeys(command.api_key_variables, MASK)
    return env


def display(command: LaunchCommand) -> str:
    """A command as a shell would take it, one flag a line, secrets as `***`."""
    lines = [" ".join(f"{key}={shlex.quote(value)}" for key, value in masked_env(command).items())]
    line: list[str] = []
    for word in command.argv:
        if word.startswith("--") and line:
            lines.append(shlex.join(line))
            line = []
        line.append(word)
    lines.append(shlex.join(line))
    return " \\\n  ".join(filter(None, lines))


def _with_flags(installation: Installation) -> tuple[Installation, list[str]]:
    """The installation with flags to check against, and what is not sure about them."""
    if not installation.flags:
        flags = flags_of(installation.version)
        note = f"the flags of vLLM {installation.version} could not be read; those of the table are used"
        return replace(installation, flags=flags), [note]
    oldest, newest = known_versions()[0], known_versions()[-1]
    if release(oldest) <= installation.release <= release(newest):
        return installation, []
    word = "newer" if installation.release > release(newest) else "older"
    note = f"vLLM {installation.version} is {word} than those that vtop was written for ({oldest} to {newest})"
    return installation, [note]


def _server(
    spec: ServerSpec,
    installation: Installation,
    notes: Sequence[str],
    *,
    port: int,
    gpus: tuple[str, ...] | None,
    role: str = "",
    host: str | None = None,
    env: Mapping[str, str] | None = None,
) -> LaunchCommand:
    """One vLLM server."""
    host = host or spec.host
    words, more_notes = server_arguments(spec, installation, spec.args)
    place = ["--host", host, "--port", str(port)]
    module = (installation.python, "-m", _MODULE, "--model", spec.model, *place, *words)
    serve = (installation.vllm_command or "vllm", "serve", spec.model, *place, *words)
    made_env = {**_environment(installation, gpus), **(env or {}), **spec.env}
    headless = spec.args.get("headless") is True  # a word of `vllm serve` alone
    return LaunchCommand(
        argv=serve if installation.command_works else module,
        fallback_argv=module if installation.command_works and not headless else None,
        served_name=spec.served_name or spec.model,
        host=host,
        port=port,
        env=made_env,
        unset_env=tuple(key for key in _UNSET_ENV if key not in made_env),
        api_key=spec.api_key,
        role=role,
        version=installation.version,
        shutdown_timeout_s=shutdown_timeout_s(spec, installation),
        ready_timeout_s=_ready_timeout_s(made_env),
        max_num_seqs=told(spec, "max_num_seqs"),
        max_num_batched_tokens=told(spec, "max_num_batched_tokens"),
        max_model_len=told(spec, "max_model_len"),
        gpus=_uuids(gpus),
        headless=headless,
        notes=(*notes, *more_notes),
    )


def _environment(installation: Installation, gpus: tuple[str, ...] | None) -> dict[str, str]:
    env = dict(_BASE_ENV)
    if installation.device in {"cuda", "rocm"}:
        # Without this CUDA counts the fastest card as 0, and NVML the one in the lowest slot.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if installation.release >= _ENGINE_TIMEOUT_SINCE:
        env["VLLM_ENGINE_READY_TIMEOUT_S"] = str(round(READY_TIMEOUT_S))
    return env


def _ready_timeout_s(env: Mapping[str, str]) -> float:
    """vtop does not give a start up before the time that the preset gives the engine is over."""
    try:
        return max(READY_TIMEOUT_S, float(int(env.get("VLLM_ENGINE_READY_TIMEOUT_S", ""))))
    except (ValueError, OverflowError):
        return READY_TIMEOUT_S


def _uuids(gpus: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The GPUs as UUIDs, where that is how they were given."""
    return gpus if gpus and all(gpu.startswith(("GPU-", "MIG-")) for gpu in gpus) else None


def _pair(
    spec: ServerSpec,
    pair: Disaggregated,
    installation: Installation,
    notes: Sequence[str],
    *,
    port: int,
    gpus: tuple[str, ...] | None,
    name: str,
    free_port: Callable[[], int],
) -> tuple[LaunchCommand, ...]:
    """Prefill servers, decode servers and the router; only the router listens beyond this machine."""
    router = _router(spec, installation)
    shares = _shares(installation, gpus, gpus_needed(spec), pair.prefill + pair.decode)
    notes = [*notes, *transfer_notes(pair, installation)]
    halves = [("prefill", pair.prefill_args)] * pair.prefill + [("decode", pair.decode_args)] * pair.decode
    servers: list[LaunchCommand] = []
    for (role, extra), share in zip(halves, shares, strict=True):
        transfer = dict(transfer_config(spec, pair, role, installation, name))
        server = _server(
            msgspec.structs.replace(spec, args={"kv-transfer-config": transfer, **spec.args, **extra}),
            installation,
            notes,
            port=free_port(),
            gpus=share,
            role=role,
            host=_LOOPBACK,
            env=transfer_env(pair, free_port),
        )
        if pair.connector == "shared-folder":
            server = replace(server, scratch_folders=(shared_folder(spec, installation.version, name),))
        servers.append(server)
    behind = ["--vllm-pd-disaggregation"]
    for server in servers:
        behind += [f"--{server.role}", f"http://{_LOOPBACK}:{server.port}"]
    argv = router_argv(router, behind, spec.host, port, metrics_port=free_port(), patience_s=READY_TIMEOUT_S)
    # It does not pass the client's key on to the halves: it sends its own, from this variable.
    return (*servers, replace(_router_command(spec, argv, port), api_key_variables=("OPENAI_API_KEY",)))


def _replicas(
    spec: ServerSpec,
    installation: Installation,
    notes: Sequence[str],
    *,
    port: int,
    gpus: tuple[str, ...] | None,
    free_port: Callable[[], int],
) -> tuple[LaunchCommand, ...]:
    """Whole servers, each with GPUs of its own, and the router that spreads requests over them."""
    router = _router(spec, installation)
    shares = _shares(installation, gpus, gpus_needed(spec), spec.replicas)
    servers = [
        _server(spec, installation, notes, port=free_port(), gpus=share, role="replica", host=_LOOPBACK)
        for share in shares
    ]
    behind = ["--worker-urls", *(f"http://{_LOOPBACK}:{server.port}" for server in servers)]
    argv = router_argv(router, behind, spec.host, port, metrics_port=free_port(), patience_s=READY_TIMEOUT_S)
    return (*servers, _router_command(spec, argv, port))


def _router_command(spec: ServerSpec, argv: tuple[str, ...], port: int) -> LaunchCommand:
    return LaunchCommand(
        argv=argv,
        served_name=spec.served_name or spec.model,
        host=spec.host,
        port=port,
        env={"NO_COLOR": "1"},
        unset_env=("OPENAI_API_KEY",),  # the user's key for somebody else's service
        api_key=spec.api_key,
        role="router",
        ready_timeout_s=READY_TIMEOUT_S,
        max_model_len=told(spec, "max_model_len"),
        gpus=(),
    )


def _distinct(free_port: Callable[[], int], taken: int) -> Callable[[], int]:
    """The same, never twice the same port: a port stays free until its process listens."""
    given = {taken}

    def pick() -> int:
        for _ in range(100):
            port = free_port()
            if port not in given:
                given.add(port)
                return port
        raise VtopError("no free ports are left on this machine", "End what holds them: ss -tlnp")

    return pick


def _router(spec: ServerSpec, installation: Installation) -> str:
    """The router's command; its plain name where nothing is to be started."""
    try:
        return find_router(spec)
    except VtopError:
        if installation.hypothetical:
            return ROUTER_COMMAND
        raise


def _shares(
    installation: Installation, gpus: tuple[str, ...] | None, each: int, servers: int
) -> list[tuple[str, ...] | None]:
    """The GPUs of each half; two halves on one GPU would fight for its memory."""
    if installation.device not in {"cuda", "rocm"}:
        return [None] * servers
    if gpus is None:
        gpus = tuple(str(index) for index in range(each * servers))
    if len(gpus) < each * servers:
        raise VtopError(
            f"{servers} servers with {each} GPU{'s' if each > 1 else ''} each need {each * servers}, not {len(gpus)}",
            f"--set gpus={each * servers}; or share one: --set gpus=[0,0] --set gpu_memory_utilization=0.4",
        )
    return [gpus[at * each : (at + 1) * each] for at in range(servers)]


_PLACE = re.compile(r"\{(args|port|gpus|name|model|host)\}")


def _own_command(spec: ServerSpec, port: int, gpus: tuple[str, ...] | None, name: str) -> LaunchCommand:
    """A command of the preset's own, such as a container, with `{args}`, `{port}`, `{gpus}` and the like filled in."""
    assert spec.command is not None
    version = spec.vllm_version or known_versions()[-1]
    inside = hypothetical_installation(version)
    words, notes = server_arguments(spec, inside, spec.args)
    if not any("{args}" in word for word in spec.command):
        notes = ["the command has no {args}: the preset's other words are not passed to it"]
    elif spec.vllm_version is None:
        notes = [f"the version inside cannot be read: written for {version} (set vllm_version)", *notes]
    host = [] if "host" in spec.args else ["--host", spec.host]
    model = [] if any("{model}" in word for word in spec.command) else ["--model", spec.model]
    everything = [*model, *host, "--port", str(port), *words]
    values = {
        "args": shlex.join(everything),
        "port": str(port),
        "gpus": ",".join(gpus) if gpus is not None else "all",
        "name": name,
        "model": spec.model,
        "host": spec.host,
    }

    def fill(words: Sequence[str]) -> tuple[str, ...]:
        made: list[str] = []
        for word in words:
            if word == "{args}":
                made += everything
            else:
                made.append(_PLACE.sub(lambda match: values[match[1]], word))
        return tuple(made)

    env = {**_environment(inside, gpus), **spec.env}
    return LaunchCommand(
        argv=fill(spec.command),
        served_name=spec.served_name or spec.model,
        host=spec.host,
        port=port,
        env=env,
        unset_env=tuple(key for key in _UNSET_ENV if key not in spec.env),
        api_key=spec.api_key,
        version=spec.vllm_version,
        stop_argv=fill(spec.stop_command) if spec.stop_command is not None else None,
        shutdown_timeout_s=shutdown_timeout_s(spec, inside),
        ready_timeout_s=_ready_timeout_s(env),
        max_num_seqs=told(spec, "max_num_seqs"),
        max_num_batched_tokens=told(spec, "max_num_batched_tokens"),
        max_model_len=told(spec, "max_model_len"),
        gpus=_uuids(gpus),
        headless=spec.args.get("headless") is True,
        notes=tuple(notes),
    )
