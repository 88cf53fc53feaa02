"""Objects and their holders: put, get, release, prune, verify and count, also against a model."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import FixedClock, Holdfast, Limits, TenantHandle
from holdfast.core import objects as bodies
from holdfast.core.queries import Query
from holdfast.core.scope import Scope
from holdfast.engines.protocol import Connection
from holdfast.errors import InvalidInput, LimitExceeded, NotFound, Stale
from holdfast.stores.objects import objects
from holdfast.stores.objects.objects import GRACE_S, MAX_HOLDERS, Checked, ObjectUsage, Pruned
from holdfast.sync_runner import step
from tests.errors import raises

NUMBERS = itertools.count()
LIMITS = Limits(content_bytes=1_000, batch_rows=6, page_rows=1_000, key_bytes=20, object_bytes=4_000)
MISSING = "00" * 32


@pytest.fixture(scope="module")
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture(scope="module")
def holdfast(clock: FixedClock) -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=clock, limits=LIMITS) as opened:
        yield opened


@pytest.fixture
def acme(holdfast: Holdfast) -> TenantHandle:
    """A tenant of its own for each test."""
    return holdfast.tenant(f"tenant {next(NUMBERS)}")


def noise(size: int, seed: int = 1) -> bytes:
    """Return bytes that cannot be compressed."""
    return Random(seed).randbytes(size)


def execute(tenant: TenantHandle, sql: str, **values: Any) -> list[tuple[Any, ...]]:
    """Execute a statement around the store."""
    params = tenant._scope.params(**values)

    async def run(connection: Connection) -> list[tuple[Any, ...]]:
        return [*await Query("planted", {connection.dialect: sql}).all(connection, params)]

    return step(tenant._engine.write(run))


def test_an_empty_batch_stores_nothing(holdfast: Holdfast, acme: TenantHandle) -> None:
    assert acme.objects.put([], holder="me") == []
    assert (acme.objects.get([]), acme.objects.has([]), acme.objects.release("me", digests=[])) == ([], [], 0)
    assert acme.objects.usage() == ObjectUsage(0, 0, 0, 0)
    assert acme.objects.verify() == Checked(0, [], None)


@pytest.mark.parametrize(
    "body",
    [b"", b"\x00", b"x" * 1_000, noise(1_000), bytearray(b"abc"), memoryview(b"abcdef")[::2]],
    ids=lambda body: f"{type(body).__name__}-{len(body)}",
)
def test_a_body_up_to_the_limit_is_stored_under_its_digest(acme: TenantHandle, body: Any) -> None:
    (digest,) = acme.objects.put([body], holder="me")
    assert digest == bodies.digest_of(bytes(body)).hex()
    assert acme.objects.get([digest]) == [bytes(body)]
    usage = acme.objects.usage()
    assert (usage.count, usage.size_bytes) == (1, len(bytes(body)))
    assert usage.stored_bytes <= usage.size_bytes


@pytest.mark.parametrize(
    "body", [b"x" * 1_001, bytearray(1_001), memoryview(array("I", [0] * 251)), memoryview(bytes(1_001))]
)
def test_a_body_over_the_limit_is_refused(acme: TenantHandle, body: Any) -> None:
    with raises(LimitExceeded, limit="content_bytes", maximum=1_000):
        acme.objects.put([b"fine", body], holder="me")
    assert acme.objects.usage().count == 0


@pytest.mark.parametrize("body", ["text", None, 7, [1], ["x"]], ids=repr)
def test_a_body_must_be_bytes(acme: TenantHandle, body: Any) -> None:
    with raises(InvalidInput, field="contents"):
        acme.objects.put([b"fine", body], holder="me")
    assert acme.objects.usage().count == 0


@pytest.mark.parametrize("batch", [b"bytes", "text", {b"x"}, iter([b"x"]), None, 7], ids=lambda b: type(b).__name__)
def test_bodies_and_digests_must_be_lists(acme: TenantHandle, batch: Any) -> None:
    with raises(InvalidInput, field="contents"):
        acme.objects.put(batch, holder="me")
    for call in (acme.objects.get, acme.objects.has):
        with raises(InvalidInput, field="digests"):
            call(batch)
    if batch is not None:
        with raises(InvalidInput, field="digests"):
            acme.objects.release("me", digests=batch)


def test_the_size_of_a_batch_is_limited(acme: TenantHandle) -> None:
    digests = acme.objects.put([bytes([number]) for number in range(6)], holder="me")
    assert acme.objects.get(digests) == [bytes([number]) for number in range(6)]
    with raises(LimitExceeded, field="contents", limit="batch_rows", maximum=6):
        acme.objects.put([b"x"] * 7, holder="me")
    for call in (acme.objects.get, acme.objects.has):
        with raises(LimitExceeded, field="digests", limit="batch_rows"):
            call([*digests, digests[0]])


@pytest.mark.parametrize(
    "wrong", ["", "00", MISSING[:-1], MISSING + "00", "zz" * 32, "٣" * 64, "\ud800" * 64, None, 7, bytes(32)], ids=ascii
)
def test_a_digest_has_sixty_four_hexadecimal_digits(acme: TenantHandle, wrong: Any) -> None:
    for call in (acme.objects.get, acme.objects.has, lambda digests: acme.objects.release("me", digests=digests)):
        with raises(InvalidInput, field="digests"):
            call([wrong])
    if wrong is not None:
        with raises(InvalidInput, field="digests"):
            acme.objects.verify(after=wrong)


def test_a_digest_can_be_in_upper_case(acme: TenantHandle) -> None:
    (digest,) = acme.objects.put([b"abc"], holder="me")
    assert acme.objects.get([digest.upper()]) == [b"abc"]
    assert acme.objects.has([digest.upper(), MISSING]) == [True, False]


@pytest.mark.parametrize("holder", ["\x00", "a\ud800", "😀" * 5, "layer:", " ", "x" * 20], ids=ascii)
def test_a_holder_can_have_any_name(acme: TenantHandle, holder: str) -> None:
    (digest,) = acme.objects.put([b"abc"], holder=holder)
    execute(acme, "UPDATE objects SET size_bytes = 4 WHERE tenant_id = :tenant_id")
    assert [list(damage.holders) for damage in acme.objects.verify().damaged] == [[holder]]
    assert acme.objects.release(holder, digests=[digest]) == 1


@pytest.mark.parametrize(
    ("holder", "error"),
    [("", InvalidInput), (7, InvalidInput), (None, InvalidInput), ("x" * 21, LimitExceeded), ("é" * 11, LimitExceeded)],
)
def test_an_invalid_holder_is_refused(acme: TenantHandle, holder: Any, error: type[Exception]) -> None:
    with raises(error, field="holder"):
        acme.objects.put([b"abc"], holder=holder)
    with raises(error, field="holder"):
        acme.objects.release(holder)
    assert acme.objects.usage().count == 0


def test_a_repeated_body_in_a_batch_is_stored_and_held_once(acme: TenantHandle) -> None:
    digests = acme.objects.put([b"abc", b"abc", b"x", b"abc"], holder="me")
    assert len(set(digests)) == 2
    assert (acme.objects.usage().count, acme.objects.release("me")) == (2, 2)


def test_a_repeated_digest_in_a_batch_is_returned_twice(acme: TenantHandle) -> None:
    one, two = acme.objects.put([b"1", b"2"], holder="me")
    assert acme.objects.get([two, one, two]) == [b"2", b"1", b"2"]
    assert acme.objects.has([one, MISSING, one]) == [True, False, True]


def test_a_missing_object_is_named_and_nothing_is_returned(acme: TenantHandle) -> None:
    (digest,) = acme.objects.put([b"1"], holder="me")
    with raises(NotFound, noun="object", key=MISSING):
        acme.objects.get([digest, MISSING])


def test_objects_of_another_tenant_do_not_exist(holdfast: Holdfast, acme: TenantHandle) -> None:
    other = holdfast.tenant(f"{acme.name} other")
    (digest,) = other.objects.put([b"theirs"], holder="me")
    assert acme.objects.has([digest]) == [False]
    with pytest.raises(NotFound):
        acme.objects.get([digest])
    assert (acme.objects.release("me"), acme.objects.release("me", digests=[digest])) == (0, 0)
    assert acme.objects.prune(grace_s=0) == Pruned(0, 0, 0)
    acme.objects.put([b"theirs"], holder="me")
    acme.objects.release("me")
    assert acme.objects.prune(grace_s=0).removed == 1
    assert other.objects.get([digest]) == [b"theirs"]


def test_releasing_one_object_keeps_the_others(acme: TenantHandle) -> None:
    one, two = acme.objects.put([b"1", b"2"], holder="me")
    assert acme.objects.release("me", digests=[one, one, MISSING]) == 1
    assert acme.objects.release("me", digests=[one]) == 0, "it is released already"
    acme.objects.prune(grace_s=0)
    assert acme.objects.has([one, two]) == [False, True]
    assert (acme.objects.release("you"), acme.objects.release("me")) == (0, 1)


def test_an_object_with_another_holder_stays(acme: TenantHandle) -> None:
    (digest,) = acme.objects.put([b"1"], holder="me")
    acme.objects.put([b"1"], holder="you")
    acme.objects.release("me")
    assert acme.objects.prune(grace_s=0) == Pruned(0, 0, 0)
    acme.objects.release("you")
    assert acme.objects.prune(grace_s=0).removed == 1
    assert acme.objects.has([digest]) == [False]


def test_an_object_without_holders_is_condemned_and_removed_after_the_grace_period(
    acme: TenantHandle, clock: FixedClock
) -> None:
    (digest,) = acme.objects.put([noise(40)], holder="me")
    acme.objects.release("me")
    assert acme.objects.usage().condemned == 0, "a release condemns nothing"
    assert acme.objects.prune() == Pruned(1, 0, 0)
    assert acme.objects.usage().condemned == 1
    clock.advance(GRACE_S - 1)
    assert acme.objects.prune() == Pruned(0, 0, 0)
    assert acme.objects.get([digest]) == [noise(40)], "a condemned object can still be read"
    clock.advance(1)
    assert acme.objects.prune() == Pruned(0, 1, 40)
    assert acme.objects.usage() == ObjectUsage(0, 0, 0, 0)


def test_putting_a_condemned_object_again_resets_its_grace_period(acme: TenantHandle, clock: FixedClock) -> None:
    (digest,) = acme.objects.put([b"1"], holder="me")
    acme.objects.release("me")
    acme.objects.prune()
    acme.objects.put([b"1"], holder="you")
    assert acme.objects.usage().condemned == 0
    clock.advance(GRACE_S)
    acme.objects.release("you")
    assert acme.objects.prune() == Pruned(1, 0, 0), "the grace period starts when it is condemned again"
    assert acme.objects.has([digest]) == [True]


@pytest.mark.parametrize("grace", [-1, 2**31, 1.0, "0", None, True], ids=repr)
def test_the_grace_period_is_a_whole_number_of_seconds(acme: TenantHandle, grace: Any) -> None:
    with raises(InvalidInput, field="grace_s"):
        acme.objects.prune(grace_s=grace)


def test_the_longest_grace_period_keeps_everything(acme: TenantHandle, clock: FixedClock) -> None:
    acme.objects.put([b"1"], holder="me")
    acme.objects.release("me")
    acme.objects.prune()
    clock.advance(86_400 * 365)
    assert acme.objects.prune(grace_s=2**31 - 1) == Pruned(0, 0, 0)


def test_a_prune_of_many_pages_examines_every_object(acme: TenantHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_PRUNED", 2)
    for start in range(0, 9, 3):
        acme.objects.put([bytes([number]) for number in range(start, start + 3)], holder=f"{start}")
    acme.objects.release("0")
    acme.objects.release("6")
    assert acme.objects.prune(grace_s=0) == Pruned(6, 6, 6)
    assert acme.objects.usage().count == 3


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_verify_pages_through_all_objects(acme: TenantHandle, size: int) -> None:
    digests = sorted(acme.objects.put([bytes([number]) for number in range(4)], holder="me"))
    count, after, ends = 0, None, []
    while True:
        checked = acme.objects.verify(limit=size, after=after)
        count += checked.count
        after = checked.next
        if after is None:
            break
        ends.append(after)
    assert count == 4
    assert ends == digests[size - 1 :: size]


@pytest.mark.parametrize(
    ("sql", "saying"),
    [
        ("UPDATE objects SET size_bytes = size_bytes + 1 WHERE tenant_id = :tenant_id", "its size"),
        ("UPDATE objects SET stored_bytes = 1 WHERE tenant_id = :tenant_id", "its size"),
        ("UPDATE objects SET body = X'00' WHERE tenant_id = :tenant_id", "has another digest"),
        ("UPDATE objects SET codec = 9 WHERE tenant_id = :tenant_id", "9"),
    ],
    ids=["size", "length", "body", "codec"],
)
def test_verify_reports_each_damaged_object_with_its_reason(acme: TenantHandle, sql: str, saying: str) -> None:
    (digest,) = acme.objects.put([b"some text that is kept"], holder="me")
    execute(acme, sql)
    (damage,) = acme.objects.verify().damaged
    assert (damage.digest, list(damage.holders)) == (digest, ["me"])
    assert saying in damage.reason


def test_verify_lists_the_first_holders_of_a_damaged_object(acme: TenantHandle) -> None:
    for number in range(MAX_HOLDERS + 2):
        acme.objects.put([b"abc"], holder=f"holder {number:03}")
    execute(acme, "UPDATE objects SET size_bytes = 4 WHERE tenant_id = :tenant_id")
    (damage,) = acme.objects.verify().damaged
    assert list(damage.holders) == [f"holder {number:03}" for number in range(MAX_HOLDERS)]
    for number in range(MAX_HOLDERS + 2):
        acme.objects.release(f"holder {number:03}")
    assert [list(damage.holders) for damage in acme.objects.verify().damaged] == [[]]


@pytest.mark.parametrize(
    ("limit", "error"), [(0, InvalidInput), ("1", InvalidInput), (True, InvalidInput), (1_001, LimitExceeded)]
)
def test_the_limit_of_verify_is_validated(acme: TenantHandle, limit: Any, error: type[Exception]) -> None:
    with raises(error, field="limit"):
        acme.objects.verify(limit=limit)


def test_a_tenant_can_use_exactly_its_object_bytes(acme: TenantHandle) -> None:
    full = [noise(1_000, seed) for seed in range(4)]
    digests = acme.objects.put(full, holder="me")
    with raises(LimitExceeded, limit="object_bytes", maximum=4_000):
        acme.objects.put([b"x"], holder="me")
    assert acme.objects.usage().stored_bytes == 4_000
    assert acme.objects.put(full[:1], holder="you") == digests[:1], "an existing object takes no further space"
    acme.objects.release("me", digests=digests[1:2])
    acme.objects.prune(grace_s=0)
    acme.objects.put([noise(1_000, 9)], holder="me")


def test_a_batch_over_the_limit_stores_nothing(acme: TenantHandle) -> None:
    with pytest.raises(LimitExceeded):
        acme.objects.put([noise(1_000, seed) for seed in range(5)], holder="me")
    assert (acme.objects.usage(), acme.objects.release("me")) == (ObjectUsage(0, 0, 0, 0), 0)


def test_holding_a_removed_object_is_stale(acme: TenantHandle) -> None:
    (digest,) = acme.objects.put([b"abc"], holder="me")
    scope, existing = Scope(acme.name, acme._scope), bytes.fromhex(digest)

    def hold(*digests: bytes) -> None:
        step(acme._engine.write(lambda connection: objects.hold(connection, scope, digests, holder="store")))

    hold(existing, existing)
    assert acme.objects.release("store") == 1
    with pytest.raises(Stale, match=MISSING):
        hold(existing, bytes(32))
    assert acme.objects.release("store") == 0, "none of them is held"


def test_a_body_without_content_must_exist_already(acme: TenantHandle) -> None:
    packed, scope = bodies.pack(noise(50)), Scope(acme.name, acme._scope)
    without_body = packed.without_body()
    assert (without_body.is_in_pack, without_body.length) == (True, 50)
    acme.objects.put([b"x"], holder="me")
    with pytest.raises(Stale, match=packed.digest.hex()):
        step(acme._engine.write(lambda connection: objects.keep(connection, scope, [without_body], holder="me")))
    acme.objects.put([noise(50)], holder="you")
    new_bytes = step(
        acme._engine.write(lambda connection: objects.keep(connection, scope, [without_body], holder="me"))
    )
    assert new_bytes == 0, "an existing object is not new"


def test_objects_persist_after_reopening_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with Holdfast(path) as holdfast:
        digests = holdfast.tenant("acme").objects.put([b"1", noise(5_000)], holder="me")
    connection = apsw.Connection(path)
    ((count,),) = connection.execute("SELECT COUNT(*) FROM object_refs WHERE holder = 'me'")
    connection.close()
    with Holdfast(path) as holdfast:
        assert (count, holdfast.tenant("acme").objects.get(digests)) == (2, [b"1", noise(5_000)])


NAMES = st.sampled_from(["a", "b"])
BODIES = st.sampled_from([b"", b"1", b"22", b"333"])
STEPS = st.lists(
    st.tuples(st.just("put"), NAMES, st.lists(BODIES, max_size=3))
    | st.tuples(st.just("release"), NAMES, st.none() | st.lists(BODIES, max_size=2))
    | st.tuples(st.just("prune"), st.none(), st.none()),
    max_size=12,
)


@settings(max_examples=30)
@given(STEPS)
def test_after_any_steps_exactly_the_held_objects_exist(holdfast: Holdfast, steps: list[tuple[str, Any, Any]]) -> None:
    tenant = holdfast.tenant(f"model {next(NUMBERS)}").objects
    held: set[tuple[str, bytes]] = set()
    for action, name, contents in steps:
        if action == "put":
            tenant.put(contents, holder=name)
            held |= {(name, content) for content in contents}
        elif action == "release":
            digests = None if contents is None else [bodies.digest_of(content).hex() for content in contents]
            released = {pair for pair in held if pair[0] == name and (contents is None or pair[1] in contents)}
            assert tenant.release(name, digests=digests) == len(released)
            held -= released
        else:
            tenant.prune(grace_s=0)
            remaining = {content for _, content in held}
            assert (tenant.usage().count, tenant.usage().size_bytes) == (len(remaining), sum(map(len, remaining)))
    remaining = {content for _, content in held}
    digests = [bodies.digest_of(content).hex() for content in sorted(remaining)]
    assert tenant.get(digests) == sorted(remaining)


def test_verify_reads_at_most_one_page(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db"), limits=Limits(page_rows=3)) as holdfast:
        acme = holdfast.tenant("acme")
        acme.objects.put([bytes([number]) * 40 for number in range(7)], holder="h")
        counts, after = [], None
        while True:
            checked = acme.objects.verify(after=after)
            counts.append(checked.count)
            after = checked.next
            if after is None:
                break
        assert counts == [3, 3, 1]
