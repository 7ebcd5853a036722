"""What bounds each server: brings model, card and settings to the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vtop.errors import VtopError
from vtop.hardware import Card, find_card
from vtop.known_models import known_shape
from vtop.load.progress import LoadProgress
from vtop.roofline import decode_cost
from vtop.service.remembering import recall_preset
from vtop.setups import setup_for
from vtop.telemetry.gpu.matching import gpus_of
from vtop.telemetry.snapshot import GpuReading, ServerView, Verdict
from vtop.telemetry.verdict import ServerFacts, facts_for_spec, verdict


class Judge:
    """Callable for the hub; facts are worked out once per server, model and card."""

    def __init__(self, load_progress: Callable[[], LoadProgress | None]) -> None:
        self._load_progress = load_progress
        self._facts: dict[tuple[object, ...], ServerFacts] = {}

    def __call__(self, view: ServerView, gpus: Sequence[GpuReading]) -> Verdict | None:
        """The verdict for one server."""
        return verdict(view, gpus, self.facts(view, gpus), self._client_limit(view))

    def facts(self, view: ServerView, gpus: Sequence[GpuReading]) -> ServerFacts:
        """Model, card and settings as far as they are known."""
        card = self._card(view, gpus)
        status = view.status
        key = (status.name, status.started_wall_s, status.model, card)
        if key not in self._facts:
            if len(self._facts) > 256:
                self._facts.clear()
            self._facts[key] = self._work_out(view, card)
        return self._facts[key]

    def _work_out(self, view: ServerView, card: Card | None) -> ServerFacts:
        preset = recall_preset(view.status.name) if view.status.owned else None
        if preset is not None:
            try:
                return facts_for_spec(preset.server, card)
            except VtopError as error:
                return ServerFacts(card=card, why_no_setup=error.what)
        model = view.status.model or (view.engine.model_name if view.engine else "")
        cache = view.engine.kv_cache_dtype if view.engine else None
        setup = setup_for(model, kv_cache_dtype=cache) if known_shape(model) is not None else None
        if setup is None:
            return ServerFacts(card=card, why_no_setup=f"the shape of {model or 'this model'} is not known")
        return ServerFacts(setup=setup, card=card)

    def _card(self, view: ServerView, gpus: Sequence[GpuReading]) -> Card | None:
        own = gpus_of(view.status, gpus)
        return find_card(own[0].name) if own else None

    def bytes_per_s(self, view: ServerView, gpus: Sequence[GpuReading]) -> float | None:
        """DRAM traffic of one GPU of a server by arithmetic: bytes of a decode step x steps per second.

        None where a term is not known. Prefills are left out, so it is a lower bound while prompts arrive.
        """
        engine = view.engine
        setup = self.facts(view, gpus).setup
        if engine is None or setup is None or not engine.running or engine.generation_tokens_per_s is None:
            return None
        if engine.kv_usage is None or engine.kv_capacity_tokens is None:
            return None
        length = engine.speculation.mean_length if engine.speculation else None
        steps_per_s = engine.generation_tokens_per_s / (engine.running * (length or 1.0))
        context = engine.kv_usage * engine.kv_capacity_tokens / engine.running
        # Each data-parallel engine has GPUs of its own, with its share of the requests.
        return decode_cost(setup, engine.running / max(1, engine.engines), context).bytes * steps_per_s

    def _client_limit(self, view: ServerView) -> str:
        progress = self._load_progress()
        if progress is None or progress.state != "running" or not progress.client_bound:
            return ""
        if progress.request.url.rstrip("/") != view.status.url.rstrip("/"):
            return ""
        return "the load test's own client is the limit"
