"""Lines of the log, and the numbers that are counted."""

from __future__ import annotations

import json
import logging
import re
import sys

from holdfast.api.metrics import Metrics
from holdfast.cli.logs import JsonLines


def test_a_line_of_the_log_is_one_json_object() -> None:
    record = logging.LogRecord("holdfast.api", logging.WARNING, "f", 1, "refused %s\n%s", ("GET", "\ud800"), None)
    said = json.loads(JsonLines().format(record))
    assert (said["level"], said["logger"]) == ("warning", "holdfast.api")
    assert said["message"] == "refused GET\n\\ud800"
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "ValueError: why" in json.loads(line)["traceback"]


# Metrics


def test_times_fall_into_the_right_buckets() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.001, 0.2, 99.0):
        metrics.add("get_session", 200, seconds)
    metrics.add("get_session", 404, 0.01)
    lines = metrics.text(is_ready=False, streams=3).splitlines()
    assert 'holdfast_requests_total{operation="get_session",status="200"} 4' in lines
    assert 'holdfast_request_seconds_bucket{operation="get_session",le="0.001"} 2' in lines
    assert 'holdfast_request_seconds_bucket{operation="get_session",le="0.25"} 4' in lines
    assert 'holdfast_request_seconds_bucket{operation="get_session",le="+Inf"} 5' in lines
    assert 'holdfast_request_seconds_count{operation="get_session"} 5' in lines
    assert {"holdfast_ready 0", "holdfast_streams 3"} <= set(lines)
    for line in lines:
        assert line.startswith("#") or re.fullmatch(
            r'[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [0-9.]+', line
        ), line
