"""How the KV cache travels from a prefill server to a decode server, in the words of one vLLM version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

from vtop import paths
from vtop.errors import VtopError
from vtop.presets import Disaggregated, ServerSpec
from vtop.vllm.install import Installation

_NIXL_SINCE = (0, 9, 0)
_FOLDER_SINCE = (0, 8, 5)
_FOLDER_RENAMED = (0, 13, 0)
_ROLES_APART = (0, 33, 0)
"""From here on NIXL's own recipe gives each half its role; before, both halves are `kv_both`."""
_NIXL_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def transfer_config(
    spec: ServerSpec, pair: Disaggregated, role: str, installation: Installation, name: str
) -> Mapping[str, object]:
    """The table of `--kv-transfer-config` for one half.

    Args:
        spec: the preset's server table.
        pair: how it is split.
        role: `prefill` or `decode`.
        installation: whose words to use.
        name: the server's name, for the shared folder.

    Raises:
        VtopError: this version has no such connector.
    """
    release, version = installation.release, installation.version
    if pair.connector == "nixl":
        if release < _NIXL_SINCE:
            raise VtopError(
                f"vLLM {version} has no NIXL connector (0.9.0 and newer have it)",
                "Use a newer vLLM, or disaggregated.connector=shared-folder (0.8.5 and newer).",
            )
        kv_role = _NIXL_ROLES[role] if release >= _ROLES_APART else "kv_both"
        return {"kv_connector": "NixlConnector", "kv_role": kv_role}
    if release < _FOLDER_SINCE:
        raise VtopError(
            f"vLLM {version} has no connector that shares a folder (0.8.5 and newer have it)", "Use a newer vLLM."
        )
    return {
        "kv_connector": "ExampleConnector" if release >= _FOLDER_RENAMED else "SharedStorageConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": shared_folder(spec, version, name)},
    }


def transfer_env(pair: Disaggregated, free_port: Callable[[], int]) -> dict[str, str]:
    """What a half needs in its environment: NIXL's side channel needs a port of its own on this host."""
    if pair.connector != "nixl":
        return {}
    return {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()), "UCX_NET_DEVICES": "all"}


def transfer_notes(pair: Disaggregated, installation: Installation) -> list[str]:
    """What a person should know about the connector."""
    if pair.connector == "shared-folder":
        return [
            "the KV cache travels through files: right for trying it out, not for speed; "
            "prompts shorter than one KV block (128 tokens on a CPU) are not transferred"
        ]
    plugins = installation.plugins
    missing = plugins is None or not any(name.startswith("nixl") for name in plugins)
    notes = ["NIXL is not in that environment: pip install nixl"] if missing and plugins is not None else []
    if installation.device == "cpu":
        notes.append("on a CPU NIXL must be built from source; connector = shared-folder needs nothing")
    return notes


def shared_folder(spec: ServerSpec, version: str, name: str) -> str:
    """The folder that both halves share.

    Its name carries what the cached numbers depend on: another model or type must never find them.
    """
    told = json.dumps(
        [
            version,
            spec.model,
            spec.dtype,
            spec.quantization,
            spec.kv_cache_dtype,
            spec.tensor_parallel,
            spec.load_format,
        ]
    )
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    return str(paths.state_dir() / "kv-transfer" / f"{name}-{digest}")
