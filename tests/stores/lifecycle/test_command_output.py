"""The output and errors of ``retention``, ``doctor`` and ``keys``: the text of every finding, and options at their
limits.
"""

from __future__ import annotations

import json
import logging
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, RetentionPolicy
from holdfast.cli import doctor, keys, retention
from holdfast.cli.commands import root
from holdfast.cli.logs import show_deletions
from holdfast.clock import from_us
from holdfast.stores.lifecycle.diagnostics import DamagedSnapshot
from holdfast.stores.lifecycle.retention.sweeps import SweepCounts
from holdfast.types import ApiKey, DiagnosticReport, Hold, SweepResult

UNKNOWN_ID = "01900000-0000-7000-8000-000000000000"
LONG_AGO, FAR_OFF = datetime(2001, 2, 3, 4, 5, tzinfo=UTC), datetime(2999, 2, 3, 4, 5, tzinfo=UTC)
MORE = doctor.SHOWN + 3


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which the tenant acme has one session."""
    path = tmp_path_factory.mktemp("prepared") / "agents.db"
    with Holdfast(str(path)) as holdfast:
        holdfast.tenant("acme").sessions.create()
    return path


@pytest.fixture
def database(prepared: Path, tmp_path: Path) -> str:
    """Such a file, the test's own."""
    return str(shutil.copy(prepared, tmp_path / "agents.db"))


def invoke(database: str, *arguments: str) -> Result:
    environment = {"HOLDFAST_DATABASE_URL": database, "HOLDFAST_TENANT": "acme", "COLUMNS": "200"}
    return CliRunner().invoke(root, [*arguments], env=environment)


def run_json(database: str, *arguments: str) -> Any:
    result = invoke(database, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        ({"orphan_packs": ["a", "b"]}, "2 packs are not referenced: a, b"),
        ({"unsealed_packs": ["a"]}, "1 packs were left by an interrupted write: a"),
        ({"missing_packs": ["a"]}, "1 packs that contain objects are missing: a"),
        ({"unheld_objects": 1_234}, "1,234 objects are not referenced and will be removed"),
        ({"dangling_refs": 2}, "2 referenced objects are missing"),
        ({"loose_layers": 3}, "3 layers are not referenced"),
        ({"pending_rewinds": 1}, "1 rewinds are in progress or were interrupted"),
        ({"damaged_snapshots": [DamagedSnapshot("s", "torn\nin two")]}, "snapshot s is damaged: torn in two"),
    ],
    ids=lambda options: next(iter(options)) if isinstance(options, dict) else "",
)
def test_each_finding_is_printed_on_its_own_line(findings: dict[str, Any], line: str) -> None:
    assert [text for text in doctor._lines(DiagnosticReport(**findings)) if text] == [line]


def test_a_report_without_findings_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._print_tenant("acme", DiagnosticReport())
    assert capsys.readouterr().out == ""
    doctor._print_tenant("acme", DiagnosticReport(loose_layers=1, dangling_refs=2))
    assert capsys.readouterr().out == ("acme:\n  2 referenced objects are missing\n  1 layers are not referenced\n"), (
        "lost data comes first"
    )


def test_long_lists_are_shortened() -> None:
    names = [f"p{number}" for number in range(MORE)]
    assert doctor._name_list("packs", names) == f"{MORE} packs: {', '.join(names[: doctor.SHOWN])}, ..."
    assert doctor._name_list("packs", names[: doctor.SHOWN]).endswith(names[doctor.SHOWN - 1])
    damaged = [DamagedSnapshot(str(number), "x" * 500) for number in range(MORE)]
    lines = [line for line in doctor._lines(DiagnosticReport(damaged_snapshots=damaged)) if line]
    assert len(lines) == doctor.SHOWN
    assert all(len(line) < 200 for line in lines)


@pytest.mark.parametrize(
    ("field", "value", "sound", "tidy"),
    [
        ("orphan_packs", ["p"], True, False),
        ("unsealed_packs", ["p"], True, False),
        ("unheld_objects", 1, True, False),
        ("loose_layers", 1, True, False),
        ("missing_packs", ["p"], False, True),
        ("dangling_refs", 1, False, True),
        ("damaged_snapshots", [DamagedSnapshot("s", "r")], False, True),
        ("pending_rewinds", 1, True, True),
    ],
)
def test_lost_data_is_not_sound_and_removable_data_is_not_tidy(field: str, value: Any, sound: bool, tidy: bool) -> None:
    result = DiagnosticReport(**{field: value})
    assert (result.is_sound, result.is_tidy) == (sound, tidy)


def test_the_doctor_checks_all_tenants_or_the_given_ones(database: str) -> None:
    with Holdfast(database) as holdfast:
        holdfast.tenants.create("zenith")
    assert list(run_json(database, "doctor")["tenants"]) == ["acme", "zenith"]
    assert list(run_json(database, "doctor", "--tenant", "zenith")["tenants"]) == ["zenith"]
    two = run_json(database, "doctor", "--tenant", "zenith", "--tenant", "absent")
    assert list(two["tenants"]) == ["zenith", "absent"]
    with Holdfast(database) as holdfast:
        assert [tenant.id for tenant in holdfast.tenants.list()] == ["acme", "zenith"], "the doctor creates no tenant"


def test_the_doctor_checks_more_tenants_than_fit_on_a_page(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as holdfast:
        for number in range(101):
            holdfast.tenants.create(f"t{number:03}")
        assert list(doctor._names(holdfast)) == [f"t{number:03}" for number in range(101)]


def test_the_doctor_exits_with_one_only_for_overdue_erasures(database: str) -> None:
    now = datetime.now(UTC)
    with Holdfast(database) as holdfast:
        holdfast.erasures.request("acme", requested_at=now - timedelta(hours=23))
    assert run_json(database, "doctor")["overdue_erasures"] == []
    with Holdfast(database) as holdfast:
        holdfast.erasures.request("zenith", requested_at=now - timedelta(hours=25))
    result = invoke(database, "doctor", "--json")
    load = json.loads(result.stdout)
    assert (result.exit_code, load["sound"], load["database"]) == (1, False, [])
    assert [erasure["tenant"] for erasure in load["overdue_erasures"]] == ["zenith"]


def test_a_repair_removes_unneeded_data_and_reports_the_rest(database: str) -> None:
    with Holdfast(database) as holdfast:
        objects = holdfast.tenant("acme").objects
        objects.put([b"let go"], holder="me")
        objects.release("me")
    assert run_json(database, "doctor")["tenants"]["acme"]["unheld_objects"] == 1
    with Holdfast(database) as holdfast:
        assert holdfast.tenant("acme").objects.usage().condemned == 0, "look does not condemn objects"
    assert run_json(database, "doctor", "--repair")["tenants"]["acme"]["unheld_objects"] == 1
    with Holdfast(database) as holdfast:
        assert holdfast.tenant("acme").objects.usage().condemned == 1


@pytest.mark.parametrize(
    ("swept", "rows"),
    [
        (SweepResult(), [["0", "0", "nothing to remove"]]),
        (SweepResult(per_run_cap=SweepCounts(1_000, 2_000)), [["1,000", "2,000", "exceeds the number per run"]]),
        (
            SweepResult(per_tenant_cap=SweepCounts(1, 5), grace_expired=SweepCounts(2, 6)),
            [["2", "6", "the grace period after the run has expired"], ["1", "5", "exceeds the tenant's quota"]],
        ),
        (SweepResult(erasure=SweepCounts(1, 1)), [["0", "0", "nothing to remove"]]),
    ],
    ids=["nothing", "thousands", "two", "erasure"],
)
def test_a_plan_prints_a_row_for_each_reason(swept: SweepResult, rows: list[list[str]]) -> None:
    assert retention._rows(swept) == rows


def test_a_plan_prints_the_remaining_bytes_and_the_held_runs() -> None:
    policy = RetentionPolicy(10, 1_500, 7)
    assert retention._about(SweepResult(), policy) == []
    assert retention._about(SweepResult(used_bytes=0, held_runs=1_001), policy) == [
        "The remaining snapshots use 0 bytes of 1,500 MiB.",
        "1,001 runs are on hold and keep all their snapshots.",
    ]


@pytest.mark.parametrize(
    ("run", "session", "words"),
    [("r", None, "run r"), (None, "s", "session s"), (None, None, "all of acme")],
    ids=["run", "session", "tenant"],
)
def test_the_subject_of_a_hold_is_printed(run: str | None, session: str | None, words: str) -> None:
    assert retention._subject(Hold(UNKNOWN_ID, run, session, "why", "", False, LONG_AGO), "acme") == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 days"), (86_400, "1 days"), (43_200, "0.5 days"), (7 * 86_400, "7 days")]
)
def test_seconds_are_printed_as_days(seconds: int, words: str) -> None:
    assert retention._days(seconds) == words


@pytest.mark.parametrize(
    ("days", "seconds"), [(None, None), (0.0, 0), (0.5, 43_200), (1e-9, 0), (24_000.0, 24_000 * 86_400)]
)
def test_days_are_stored_as_seconds(days: float | None, seconds: int | None) -> None:
    assert retention._seconds(days) == seconds


@pytest.mark.parametrize("days", [float("nan"), float("inf"), 24_000.1, 1e300])
def test_days_out_of_range_are_refused(days: float) -> None:
    with pytest.raises(click.UsageError, match="24,000"):
        retention._seconds(days)


@pytest.mark.parametrize(
    ("arguments", "status", "saying"),
    [
        (["retention", "policy", "--grace-days", "nan"], 2, "at most 24,000"),
        (["retention", "policy", "--grace-days", "inf"], 2, "at most 24,000"),
        (["retention", "policy", "--grace-days", "-1"], 2, "--grace-days"),
        (["retention", "policy", "--run", UNKNOWN_ID, "--keep-days", "nan"], 2, "at most 24,000"),
        (["retention", "policy", "--run", UNKNOWN_ID, "--keep-days", "1"], 1, UNKNOWN_ID),
        (["retention", "policy", "--quota-mib", "-1"], 2, "--quota-mib"),
        (["retention", "policy", "--quota-mib", str(2**40)], 1, "snapshot_quota_mib"),
        (["retention", "policy", "--per-run", str(2**31)], 1, "per_run must be"),
        (["retention", "policy", "--tenant", "absent", "--quota-mib", "1"], 1, "absent"),
        (["retention", "policy", "--tenant", ""], 1, "tenant"),
        (["retention", "run", "--every", "nan"], 1, "every_s"),
        (["retention", "run", "--every", "inf"], 1, "every_s"),
        (["retention", "run", "--every", "-1"], 2, "--every"),
        (["retention", "run", "--log", "."], 1, "Is a directory"),
        (["retention", "hold", "--reason", "why", "--run", UNKNOWN_ID, "--session", UNKNOWN_ID], 1, "session"),
        (["retention", "hold", "--reason", "why", "--session", UNKNOWN_ID], 1, UNKNOWN_ID),
        (["retention", "release", "--hold", UNKNOWN_ID], 1, UNKNOWN_ID),
        (["keys", "create", "--name", "x", "--days", "0"], 2, "--days"),
        (["keys", "create", "--name", "x", "--days", "36501"], 2, "--days"),
        (["keys", "create", "--name", "x" * 256], 1, "name_bytes"),
        (["doctor", "--tenant", ""], 1, "tenant"),
    ],
    ids=lambda options: "-".join(options)[:60] if isinstance(options, list) else "",
)
def test_invalid_commands_print_an_error_and_change_nothing(
    database: str, arguments: list[str], status: int, saying: str
) -> None:
    result = invoke(database, *arguments)
    assert (result.exit_code, saying in result.output) == (status, True), result.output
    assert "unexpected" not in result.output
    with Holdfast(database) as holdfast:
        assert [tenant.id for tenant in holdfast.tenants.list()] == ["acme"]
        assert holdfast.tenant("acme").activity.count() == 0
        assert holdfast.api_keys.list() == []


def test_a_policy_is_cleared_before_it_is_set(database: str) -> None:
    run_json(database, "retention", "policy", "--per-run", "3", "--grace-days", "2", "--quota-mib", "9")
    result = run_json(database, "retention", "policy", "--clear", "--per-run", "4")["policy"]
    assert result == {"per_run": 4, "quota_mib": 500, "grace_s": 7 * 86_400}
    assert run_json(database, "retention", "policy", "--clear", "--tenant", "absent")["policy"]["per_run"] == 10


def test_the_removal_log_is_closed_and_has_only_removals(tmp_path: Path) -> None:
    log, file = logging.getLogger("holdfast.retention"), tmp_path / "audit.jsonl"
    before = list(log.handlers)

    def break_off() -> None:
        with click.Context(click.Command("x")):
            show_deletions(str(file))
            log.info('{"a":"名"}')
            logging.getLogger("holdfast.retention.other").info("words")
            logging.getLogger("holdfast.sweeper").info("words")
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        break_off()
    assert (file.read_text("utf-8"), log.handlers, log.propagate) == ('{"a":"名"}\n', before, True)


def key(**more: Any) -> ApiKey:
    fields = {"expires_at": None, "last_used_at": None, "revoked_at": None, **more}
    return ApiKey(UNKNOWN_ID, more.pop("tenant", ""), "ci", "hf_01234567", ["read", "write"], from_us(0), *[
        fields[name] for name in ("expires_at", "last_used_at", "revoked_at")
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({}, "valid"),
        ({"expires_at": FAR_OFF}, "valid until 2999-02-03 04:05"),
        ({"expires_at": LONG_AGO}, "expired 2001-02-03 04:05"),
        ({"revoked_at": LONG_AGO}, "revoked 2001-02-03 04:05"),
        ({"revoked_at": LONG_AGO, "expires_at": LONG_AGO - timedelta(days=1)}, "revoked 2001-02-03 04:05"),
    ],
    ids=["valid", "until", "expired", "revoked", "both"],
)
def test_the_state_of_a_key_is_printed(given: dict[str, Any], state: str) -> None:
    assert keys._state(key(**given)) == state


def test_a_key_is_a_row_with_its_tenant_and_last_use() -> None:
    assert keys._row(key()) == [UNKNOWN_ID, "hf_01234567", "ci", "(all)", "read write", "never", "valid"]
    used = keys._row(key(tenant="acme", last_used_at=LONG_AGO))
    assert (used[3], used[5]) == ("acme", "2001-02-03 04:05")


@pytest.mark.parametrize("days", [1, 36_500])
def test_a_key_expires_after_the_given_days(database: str, days: int) -> None:
    made = run_json(database, "keys", "create", "--name", "ci", "--days", str(days))
    with Holdfast(database) as holdfast:
        kept = holdfast.api_keys.verify(made["key"])
    assert kept.expires_at is not None
    assert abs(kept.expires_at - kept.created_at - timedelta(days=days)) < timedelta(minutes=5)
    assert (kept.tenant, made["kept"]["id"]) == ("acme", kept.id), "the tenant of the environment"


def test_keys_are_listed_for_one_tenant_or_for_all(database: str) -> None:
    for tenant in ("acme", "zenith", ""):
        run_json(database, "keys", "create", "--name", f"of {tenant}", "--tenant", tenant)
    listed = [key["name"] for key in run_json(database, "keys", "list")["keys"]]
    assert listed == ["of acme"]
    assert [key["name"] for key in run_json(database, "keys", "list", "--tenant", "zenith")["keys"]] == ["of zenith"]
    assert "gives access to all tenants" in invoke(database, "keys", "create", "--name", "x", "--tenant", "").output


def test_revoking_twice_prints_the_same(database: str) -> None:
    id = run_json(database, "keys", "create", "--name", "ci")["kept"]["id"]
    first = run_json(database, "keys", "revoke", "--id", id)["key"]
    assert run_json(database, "keys", "revoke", "--id", id.upper())["key"] == first
    assert first["revoked_at"] is not None
