"""Clocks: times in microseconds, the fixed clock of tests, the stopwatch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from holdfast import FixedClock, SystemClock
from holdfast.clock import Stopwatch, from_us, monotonic_s, to_us

microseconds = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


@given(microseconds)
def test_a_time_keeps_every_microsecond(us: int) -> None:
    assert to_us(from_us(us)) == us
    assert from_us(us).utcoffset() == timedelta(0)


@given(
    st.datetimes(
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-11))])
    )
)
def test_the_time_zone_of_a_datetime_does_not_matter(time: datetime) -> None:
    try:
        us = to_us(time)
    except OverflowError:
        assert time.year in (1, 9999)
        return
    assert from_us(us) == time


def test_the_first_and_last_times_round_trip() -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert from_us(to_us(first)) == first
    assert from_us(to_us(last)) == last


def test_a_fixed_clock_only_moves_when_advanced_also_backwards() -> None:
    clock = FixedClock(datetime(2020, 1, 1, tzinfo=UTC))
    start = clock.now_us()
    assert clock.now_us() == start == to_us(datetime(2020, 1, 1, tzinfo=UTC))
    clock.advance(1.5)
    assert clock.now_us() == start + 1_500_000
    clock.advance(-2)
    assert clock.now_us() == start - 500_000
    assert FixedClock(7).now_us() == 7


def test_the_system_clock_returns_the_current_time() -> None:
    before = datetime.now(UTC)
    now = from_us(SystemClock().now_us())
    assert before - timedelta(seconds=1) < now < before + timedelta(seconds=60)


def test_a_stopwatch_measures_time_and_the_monotonic_clock_never_goes_back() -> None:
    before, watch = monotonic_s(), Stopwatch()
    assert watch.waited_s() > -0.1
    assert monotonic_s() >= before
