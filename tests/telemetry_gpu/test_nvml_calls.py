"""What each answer of NVML means, by table, with a binding made of Python alone (also where there is no C compiler)."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from vtop.clock import FakeClock
from vtop.telemetry.gpu.nvml_calls import ASK_AGAIN_S, Calls, DeviceLostError, LibraryDownError, count, counter, number


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class MismatchError(Exception):
    pass


class Binding(SimpleNamespace):
    """Answers one function with what it was told: a value, or an exception to raise."""

    def __init__(self) -> None:
        super().__init__(NVMLError=NVMLError, NVMLLibraryMismatchError=MismatchError)
        self.answers: list[Any] = []
        self.asked = 0

    def nvmlDeviceGetThing(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def binding() -> Binding:
    return Binding()


def make(binding: Binding, clock: FakeClock, shared: bool = False) -> Calls:
    return Calls(binding, clock, shared)  # type: ignore[arg-type]


def ask(calls: Calls) -> Any:
    return calls.ask("thing", "nvmlDeviceGetThing", object())


@pytest.mark.parametrize("code", [3, 13, 21, 25, 26, 4])
def test_refusals_are_remembered_for_five_minutes(binding: Binding, clock: FakeClock, code: int) -> None:
    binding.answers = [NVMLError(code)]
    calls = make(binding, clock)
    for _ in range(3):
        assert ask(calls) is None
        clock.advance(ASK_AGAIN_S / 4)
    assert binding.asked == 1 and calls.missing["thing"]
    binding.answers = [7]
    clock.advance(ASK_AGAIN_S)
    assert ask(calls) == 7 and "thing" not in calls.missing


@pytest.mark.parametrize("code", [2, 6, 10, 19, 20, 27])
def test_passing_failures_are_asked_again_next_time(binding: Binding, clock: FakeClock, code: int) -> None:
    binding.answers = [NVMLError(code)]
    calls = make(binding, clock)
    assert ask(calls) is None and str(code) in calls.missing["thing"]
    assert ask(calls) is None and binding.asked == 2


def test_invalid_argument_on_a_part_of_a_gpu_is_a_refusal(binding: Binding, clock: FakeClock) -> None:
    binding.answers = [NVMLError(2)]
    calls = make(binding, clock, shared=True)
    assert ask(calls) is None and ask(calls) is None
    assert binding.asked == 1


@pytest.mark.parametrize("code", [11, 15, 16])
def test_dead_devices(binding: Binding, clock: FakeClock, code: int) -> None:
    binding.answers = [NVMLError(code)]
    with pytest.raises(DeviceLostError):
        ask(make(binding, clock))


@pytest.mark.parametrize("code", [1, 9, 12, 18])
def test_dead_library(binding: Binding, clock: FakeClock, code: int) -> None:
    binding.answers = [NVMLError(code)]
    with pytest.raises(LibraryDownError) as caught:
        ask(make(binding, clock))
    assert caught.value.code == code


def test_unknown_errors_kill_a_device_only_in_a_row(binding: Binding, clock: FakeClock) -> None:
    calls = make(binding, clock)
    binding.answers = [NVMLError(999), NVMLError(999), 5, NVMLError(999), NVMLError(999), NVMLError(999)]
    assert [ask(calls) for _ in range(5)] == [None, None, 5, None, None]
    with pytest.raises(DeviceLostError):
        ask(calls)


def test_a_list_that_grew_between_its_two_questions_is_asked_once_more(binding: Binding, clock: FakeClock) -> None:
    binding.answers = [NVMLError(7), [1, 2]]
    assert ask(make(binding, clock)) == [1, 2]
    binding.answers = [NVMLError(7)]
    calls = make(binding, clock)
    assert ask(calls) is None and binding.asked == 4


@pytest.mark.parametrize("error", [MismatchError(), AttributeError("an older binding")])
def test_a_binding_without_the_call(binding: Binding, clock: FakeClock, error: Exception) -> None:
    """The mismatch error is no NVMLError in the real binding either."""
    binding.answers = [error]
    calls = make(binding, clock)
    assert ask(calls) is None and ask(calls) is None
    assert binding.asked == 1 and "nvidia-ml-py" in calls.missing["thing"]


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ctypes.ArgumentError()])
def test_answers_that_cannot_be_read(binding: Binding, clock: FakeClock, error: Exception) -> None:
    binding.answers = [error]
    calls = make(binding, clock)
    assert ask(calls) is None and "unreadable" in calls.missing["thing"]


def test_not_available_is_written_as_all_ones() -> None:
    assert number(0xFFFFFFFF) is None and number(0xFFFFFFFFFFFFFFFF) is None and number(None) is None
    assert number(7) == 7.0 and count(7) == 7 and count(0xFFFFFFFF) is None
    assert counter(0xFFFFFFFF) == 0xFFFFFFFF, "a 64-bit counter may pass by there"
    assert counter(0xFFFFFFFFFFFFFFFF) is None
