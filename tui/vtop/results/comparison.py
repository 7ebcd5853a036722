"""What a comparison is asked, how it stands, and what came out: frozen shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vtop.load.progress import LoadRequest, LoadResult
from vtop.results.pictures import Picture


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """A comparison as asked for."""

    presets: tuple[str, ...]
    workload: str | None = None
    """None: `chat`. Beside `load` only its name."""
    repeats: int = 3
    overrides: Mapping[str, str] = field(default_factory=dict)
    """`--set` for every preset."""
    simulated: bool = False
    gpu: str | None = None
    """The simulated card."""
    requests: int | None = None
    concurrency: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    """None: fresh, and recorded."""
    order: str = "auto"
    """`interleaved` (A B C C B A, a restart before each run), `blocks` (A A B B, one start each, then A again to see
    drift), or `auto`: interleaved unless starts take much longer than the runs."""
    warmup: int | None = None
    """Requests before each clock; None: as many as the concurrency."""
    load: LoadRequest | None = None
    """A load of one's own (a shape, a file of prompts, other values) in place of the workload as it is shipped."""


@dataclass(frozen=True, slots=True)
class CompareStep:
    """One run of one configuration in a comparison."""

    round: int
    preset: str
    state: str
    """`waiting`, `starting`, `warming-up`, `loading`, `stopping`, `done`, `failed`."""
    detail: str = ""
    output_tokens_per_s: float | None = None
    ttft_p50_s: float | None = None
    tpot_p50_s: float | None = None
    drift_check: bool = False
    """Not in the table: the first configuration once more, at the end of blocks."""


@dataclass(frozen=True, slots=True)
class CompareRow:
    """One configuration of the table."""

    preset: str
    runs: int
    output_tokens_per_s: float | None
    ratio: float | None
    """Against the first row."""
    ratio_low: float | None
    """95 % interval of the ratio; None with one run."""
    ratio_high: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    e2e_mean_s: float | None
    e2e_p95_s: float | None
    bandwidth_percent: float | None
    bandwidth_source: str | None
    joules_per_token: float | None
    prefix_hit_rate: float | None
    acceptance: float | None
    kv_capacity_tokens: float | None
    weights_bytes: float | None
    failed: int
    predicted_ratio: float | None
    verdict: str
    """`faster`, `slower`, `no difference seen (could be up to 3 %)`, `not comparable: why`,
    `one run: no verdict (N more would settle it)`, `first row`."""
    notes: tuple[str, ...] = ()
    guessed_share: float | None = None
    """Speculation: share of a sequence's steps that had a draft to check, 0..1."""
    tokens_per_step: float | None = None
    """Speculation: tokens that one step of one sequence yielded, over all steps."""
    ttft_verdict: str = ""
    tpot_verdict: str = ""
    ttft_ratio: float | None = None
    """TTFT p50 against the first row: below 1 is faster."""
    ttft_ratio_low: float | None = None
    ttft_ratio_high: float | None = None
    tpot_ratio: float | None = None
    tpot_ratio_low: float | None = None
    tpot_ratio_high: float | None = None
    version: str | None = None
    """vLLM's version."""
    beside: str = ""
    """The row of which this one is a change (a preset's `compare_with`), where that is not the first row."""
    beside_ratio: float | None = None
    """Output tokens/s against that row, with its interval and verdict."""
    beside_low: float | None = None
    beside_high: float | None = None
    beside_verdict: str = ""
    beside_ttft_ratio: float | None = None
    """TTFT and TPOT (p50) against that row: below 1 is faster."""
    beside_ttft_verdict: str = ""
    beside_tpot_ratio: float | None = None
    beside_tpot_verdict: str = ""
    beside_predicted_ratio: float | None = None
    gpus: int | None = None
    """How many it used."""


@dataclass(frozen=True, slots=True, eq=False)
class CompareProgress:
    """A comparison now."""

    run_id: str
    request: CompareRequest
    state: str
    """`planned`, `running`, `finished`, `cancelled`, `failed`."""
    steps: tuple[CompareStep, ...]
    rows: tuple[CompareRow, ...]
    elapsed_s: float
    expected_s: float | None
    message: str = ""
    warnings: tuple[str, ...] = ()
    simulated: bool = False
    directory: str = ""
    pictures: tuple[Picture, ...] = ()
    """Each configuration as it was last seen under load, in the order of the table."""
    repeat_command: str = ""
    """The command line that repeats it; "" until it is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorTimes:
    """The least times of a configuration under a load, from bytes and FLOPs over the card's peaks."""

    batch: int
    """Requests decoded together."""
    answer_tokens: float
    prefill_s: float
    """Arithmetic of one whole prompt; the weights that it reads are read for the batch anyway."""
    step_s: float
    """A decode step of the batch, in the middle of an answer, without speculation."""
    prefill_servers: int = 0
    """GPUs (or groups) that only prefill; 0: prefill and decode take turns on the same."""

    def tokens_per_s(self, hits: float = 0.0, gain: float = 1.0) -> float:
        """Output at the floor.

        Where prefill and decode take turns, a wave of the batch takes all its prefills and all its decode steps. Apart,
        the slower of the two stations sets the pace.

        Args:
            hits: share of the prompt tokens that the prefix cache had.
            gain: of speculation over a plain decode step, 1 without.
        """
        prefill, decode = self.prefill_s * (1 - hits), self.answer_tokens * self.step_s / gain
        if not self.prefill_servers:
            return self.batch * self.answer_tokens / (self.batch * prefill + decode)
        by_decode = self.batch / (prefill + decode)
        by_prefill = self.prefill_servers / prefill if prefill else by_decode
        return self.answer_tokens * min(by_decode, by_prefill)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationFacts:
    """What is known of a configuration beside its runs."""

    model: str = ""
    prefix_caching: bool | None = None
    speculative: bool = False
    optimization: str = "none"
    compare_with: str | None = None
    """The preset of which this one is a change."""
    kv_capacity_tokens: float | None = None
    weights_bytes: float | None = None
    floor: FloorTimes | None = None
    """None where model or card is not known."""
    drafted_per_step: int | None = None
    """Tokens that speculation proposes at once."""
    step_cost: float | None = None
    """Time of a step with a draft over that of a plain one, from bytes and FLOPs: tokens a step must yield to pay."""
    command: tuple[str, ...] = ()
    """The server's command line, without secrets."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One finished run of a comparison."""

    round: int
    preset: str
    result: LoadResult
    drift_check: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparisonRecord:
    """A whole comparison as it is kept on disk."""

    run_id: str
    directory: str
    request: CompareRequest
    at_wall_s: float
    seed: int
    """Round r uses `seed + r`."""
    state: str = "planned"
    steps: tuple[CompareStep, ...] = ()
    measured: tuple[Measured, ...] = ()
    facts: Mapping[str, ConfigurationFacts] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    """Preset -> why it could not be measured."""
    rows: tuple[CompareRow, ...] = ()
    elapsed_s: float = 0.0
    warnings: tuple[str, ...] = ()
    message: str = ""
    server: str | None = None
    """The server that is up for this comparison now; stopped first when it is resumed."""
    owner_pid: int | None = None
    owner_created_s: float | None = None
    """The process that runs it (pid and create time)."""
    repeat_command: str = ""
    started_s: Mapping[str, float] = field(default_factory=dict)
    """Preset -> seconds that its last start took."""
    loaded_s: Mapping[str, float] = field(default_factory=dict)
    """Preset -> seconds that its last load took."""

    @property
    def simulated(self) -> bool:
        """Asked for simulated servers, or any run of it was."""
        return self.request.simulated or any(run.result.simulated for run in self.measured)
