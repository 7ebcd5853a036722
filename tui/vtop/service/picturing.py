"""From a snapshot to the picture of a configuration under load."""

from __future__ import annotations

from vtop.results.comparison import ConfigurationFacts
from vtop.results.pictures import GpuPicture, Picture, ServerPicture
from vtop.service.windows import own_gpus, working
from vtop.telemetry.snapshot import ServerView, Snapshot
from vtop.vllm.reading import EngineReading, Latency, Quantile


def picture_of(preset: str, server: str, snapshot: Snapshot, facts: ConfigurationFacts | None) -> Picture | None:
    """What the servers behind one name do now; None while nothing runs there, so that the last one stays."""
    view = next((view for view in snapshot.servers if view.status.name == server), None)
    names = [status.name for status in working(view, snapshot)]
    views = [view for view in snapshot.servers if view.status.name in names]
    # As a request goes through them: the prefill server, then the one that decodes.
    views.sort(key=lambda view: (view.status.role == "decode", view.status.name))
    servers = tuple(_server(view, view.engine) for view in views if view.engine is not None)
    if not any(one.running for one in servers):
        return None
    facts = facts or ConfigurationFacts()
    return Picture(
        preset=preset,
        servers=servers,
        gpus=tuple(
            GpuPicture(
                index=gpu.index,
                bandwidth_percent=gpu.bandwidth.percent if gpu.bandwidth is not None else None,
                bandwidth_source=gpu.bandwidth.source if gpu.bandwidth is not None else "",
            )
            for gpu in own_gpus(view, snapshot)
        ),
        weights_bytes=facts.weights_bytes,
        tpot_floor_s=facts.floor.step_s if facts.floor is not None else None,
        break_even_length=facts.step_cost,
    )


def _server(view: ServerView, engine: EngineReading) -> ServerPicture:
    speculation = engine.speculation
    return ServerPicture(
        role=view.status.role,
        running=engine.running,
        waiting=engine.waiting,
        tokens_per_step=engine.tokens_per_step,
        prefix_hit_rate=engine.prefix_hit_rate,
        ttft_mean_s=_mean(engine.ttft),
        tpot_mean_s=_mean(engine.tpot),
        itl_p50_s=_value(engine.itl.p50) if engine.itl is not None else None,
        itl_p95_s=_value(engine.itl.p95) if engine.itl is not None else None,
        prompt_tokens_per_s=engine.prompt_tokens_per_s,
        generation_tokens_per_s=engine.generation_tokens_per_s,
        accepted_by_position=speculation.per_position if speculation is not None else (),
        acceptance_length=speculation.mean_length if speculation is not None else None,
        kv_capacity_tokens=engine.kv_capacity_tokens,
    )


def _mean(latency: Latency | None) -> float | None:
    return latency.mean_s if latency is not None else None


def _value(quantile: Quantile | None) -> float | None:
    return quantile.value_s if quantile is not None else None
