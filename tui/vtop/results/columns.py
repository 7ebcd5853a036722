"""The second half of the comparison's table: what stands beside throughput, ratio and verdict, as words."""

from __future__ import annotations

from vtop import units
from vtop.results.comparison import CompareRow

SECOND_HALF = (
    "configuration",
    "predicted",
    "TTFT P95",
    "TPOT P95",
    "E2E mean",
    "E2E P95",
    "J/token",
    "KV capacity",
    "weights",
    "GPUs",
    "runs",
)


def second_half(row: CompareRow) -> tuple[str, ...]:
    """One row under `SECOND_HALF`; what is not known is a dash."""
    return (
        row.preset,
        units.DASH if row.predicted_ratio is None else f"{row.predicted_ratio:.2f}x",
        *map(units.duration, (row.ttft_p95_s, row.tpot_p95_s, row.e2e_mean_s, row.e2e_p95_s)),
        units.significant(row.joules_per_token),
        units.DASH if row.kv_capacity_tokens is None else f"{units.count(row.kv_capacity_tokens)} tokens",
        units.gib(row.weights_bytes),
        units.count(row.gpus),
        str(row.runs),
    )
