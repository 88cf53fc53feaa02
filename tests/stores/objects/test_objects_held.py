"""Objects by who holds them: put, read, let go, pruned, verified and counted, with every edge, against a model too."""

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
from holdfast.stores.objects.objects import GRACE_S, MAX_HOLDERS, Checked, Pruned, Usage
from holdfast.sync_runner import step

NUMBERS = itertools.count()
LIMITS = Limits(content_bytes=1_000, batch_rows=6, page_rows=1_000, key_bytes=20, object_bytes=4_000)
NEVER = "00" * 32


@pytest.fixture(scope="module")
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture(scope="module")
def holdfast(clock: FixedClock) -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=clock, limits=LIMITS) as opened:
        yield opened


@pytest.fixture
def acme(holdfast: Holdfast) -> TenantHandle:
    """A tenant of the test's own."""
    return holdfast.tenant(f"tenant {next(NUMBERS)}")


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that are stored in as many."""
    return Random(seed).randbytes(size)


def execute(there: TenantHandle, sql: str, **values: Any) -> list[tuple[Any, ...]]:
    """A statement behind the back of the store."""
    params = there._scope.params(**values)

    async def run(connection: Connection) -> list[tuple[Any, ...]]:
        return [*await Query("planted", {connection.dialect: sql}).all(connection, params)]

    return step(there._engine.write(run))


def test_nothing_put_is_nothing_kept(holdfast: Holdfast, acme: TenantHandle) -> None:
    assert acme.objects.put([], holder="me") == []
    assert (acme.objects.get([]), acme.objects.has([]), acme.objects.release("me", digests=[])) == ([], [], 0)
    assert acme.objects.usage() == Usage(0, 0, 0, 0)
    assert acme.objects.verify() == Checked(0, [], None)


@pytest.mark.parametrize(
    "body",
    [b"", b"\x00", b"x" * 1_000, noise(1_000), bytearray(b"abc"), memoryview(b"abcdef")[::2]],
    ids=lambda body: f"{type(body).__name__}-{len(body)}",
)
def test_a_body_of_any_size_up_to_the_limit_comes_back_under_its_digest(acme: TenantHandle, body: Any) -> None:
    (digest,) = acme.objects.put([body], holder="me")
    assert digest == bodies.digest_of(bytes(body)).hex()
    assert acme.objects.get([digest]) == [bytes(body)]
    usage = acme.objects.usage()
    assert (usage.count, usage.size_bytes) == (1, len(bytes(body)))
    assert usage.stored_bytes <= usage.size_bytes


@pytest.mark.parametrize(
    "body", [b"x" * 1_001, bytearray(1_001), memoryview(array("I", [0] * 251)), memoryview(bytes(1_001))]
)
def test_a_body_over_the_limit_is_refused_whatever_its_items_are(acme: TenantHandle, body: Any) -> None:
    with pytest.raises(LimitExceeded, match="content_bytes = 1,000"):
        acme.objects.put([b"fine", body], holder="me")
    assert acme.objects.usage().count == 0


@pytest.mark.parametrize("body", ["text", None, 7, [1], ["x"]], ids=repr)
def test_a_body_that_is_no_bytes_is_refused(acme: TenantHandle, body: Any) -> None:
    with pytest.raises(InvalidInput, match=f"is bytes, not {type(body).__name__}"):
        acme.objects.put([b"fine", body], holder="me")
    assert acme.objects.usage().count == 0


@pytest.mark.parametrize("batch", [b"bytes", "text", {b"x"}, iter([b"x"]), None, 7], ids=lambda b: type(b).__name__)
def test_bodies_and_digests_come_as_lists(acme: TenantHandle, batch: Any) -> None:
    with pytest.raises(InvalidInput, match="contents come as a list"):
        acme.objects.put(batch, holder="me")
    for call in (acme.objects.get, acme.objects.has):
        with pytest.raises(InvalidInput, match="digests come as a list"):
            call(batch)
    if batch is not None:
        with pytest.raises(InvalidInput, match="digests come as a list"):
            acme.objects.release("me", digests=batch)


def test_a_batch_has_as_many_as_the_limit_says(acme: TenantHandle) -> None:
    digests = acme.objects.put([bytes([number]) for number in range(6)], holder="me")
    assert acme.objects.get(digests) == [bytes([number]) for number in range(6)]
    with pytest.raises(LimitExceeded, match="contents: 7 is over the limit batch_rows = 6"):
        acme.objects.put([b"x"] * 7, holder="me")
    for call in (acme.objects.get, acme.objects.has):
        with pytest.raises(LimitExceeded, match="digests: 7"):
            call([*digests, digests[0]])


@pytest.mark.parametrize(
    "wrong", ["", "00", NEVER[:-1], NEVER + "00", "zz" * 32, "٣" * 64, "\ud800" * 64, None, 7, bytes(32)], ids=ascii
)
def test_a_digest_is_sixty_four_hexadecimal_digits(acme: TenantHandle, wrong: Any) -> None:
    for call in (acme.objects.get, acme.objects.has, lambda digests: acme.objects.release("me", digests=digests)):
        with pytest.raises(InvalidInput, match="a digest is 64 hexadecimal digits"):
            call([wrong])
    if wrong is not None:
        with pytest.raises(InvalidInput, match="a digest is 64 hexadecimal digits"):
            acme.objects.verify(after=wrong)


def test_a_digest_in_capitals_is_the_same(acme: TenantHandle) -> None:
    (digest,) = acme.objects.put([b"abc"], holder="me")
    assert acme.objects.get([digest.upper()]) == [b"abc"]
    assert acme.objects.has([digest.upper(), NEVER]) == [True, False]


@pytest.mark.parametrize("holder", ["\x00", "a\ud800", "😀" * 5, "layer:", " ", "x" * 20], ids=ascii)
def test_a_holder_may_have_any_name(acme: TenantHandle, holder: str) -> None:
    (digest,) = acme.objects.put([b"abc"], holder=holder)
    execute(acme, "UPDATE objects SET size_bytes = 4 WHERE tenant_id = :tenant_id")
    assert [list(each.holders) for each in acme.objects.verify().damaged] == [[holder]]
    assert acme.objects.release(holder, digests=[digest]) == 1


@pytest.mark.parametrize(
    ("holder", "error"),
    [("", InvalidInput), (7, InvalidInput), (None, InvalidInput), ("x" * 21, LimitExceeded), ("é" * 11, LimitExceeded)],
)
def test_a_holder_without_a_name_holds_nothing(acme: TenantHandle, holder: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="holder"):
        acme.objects.put([b"abc"], holder=holder)
    with pytest.raises(error, match="holder"):
        acme.objects.release(holder)
    assert acme.objects.usage().count == 0


def test_the_same_body_twice_in_a_batch_is_kept_and_held_once(acme: TenantHandle) -> None:
    digests = acme.objects.put([b"abc", b"abc", b"x", b"abc"], holder="me")
    assert len(set(digests)) == 2
    assert (acme.objects.usage().count, acme.objects.release("me")) == (2, 2)


def test_what_is_read_twice_in_a_batch_comes_twice(acme: TenantHandle) -> None:
    one, two = acme.objects.put([b"1", b"2"], holder="me")
    assert acme.objects.get([two, one, two]) == [b"2", b"1", b"2"]
    assert acme.objects.has([one, NEVER, one]) == [True, False, True]


def test_one_that_is_not_here_is_named_and_none_of_the_others_comes(acme: TenantHandle) -> None:
    (digest,) = acme.objects.put([b"1"], holder="me")
    with pytest.raises(NotFound, match=NEVER):
        acme.objects.get([digest, NEVER])


def test_what_another_tenant_has_is_not_here(holdfast: Holdfast, acme: TenantHandle) -> None:
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


def test_who_lets_go_of_one_still_holds_the_others(acme: TenantHandle) -> None:
    one, two = acme.objects.put([b"1", b"2"], holder="me")
    assert acme.objects.release("me", digests=[one, one, NEVER]) == 1
    assert acme.objects.release("me", digests=[one]) == 0, "it is let go of already"
    acme.objects.prune(grace_s=0)
    assert acme.objects.has([one, two]) == [False, True]
    assert (acme.objects.release("you"), acme.objects.release("me")) == (0, 1)


def test_what_somebody_else_holds_stays(acme: TenantHandle) -> None:
    (digest,) = acme.objects.put([b"1"], holder="me")
    acme.objects.put([b"1"], holder="you")
    acme.objects.release("me")
    assert acme.objects.prune(grace_s=0) == Pruned(0, 0, 0)
    acme.objects.release("you")
    assert acme.objects.prune(grace_s=0).removed == 1
    assert acme.objects.has([digest]) == [False]


def test_what_nobody_holds_is_marked_first_and_goes_at_the_very_second(acme: TenantHandle, clock: FixedClock) -> None:
    (digest,) = acme.objects.put([noise(40)], holder="me")
    acme.objects.release("me")
    assert acme.objects.usage().condemned == 0, "letting go marks nothing"
    assert acme.objects.prune() == Pruned(1, 0, 0)
    assert acme.objects.usage().condemned == 1
    clock.advance(GRACE_S - 1)
    assert acme.objects.prune() == Pruned(0, 0, 0)
    assert acme.objects.get([digest]) == [noise(40)], "it is read as long as it is here"
    clock.advance(1)
    assert acme.objects.prune() == Pruned(0, 1, 40)
    assert acme.objects.usage() == Usage(0, 0, 0, 0)


def test_what_is_put_again_while_it_is_marked_starts_anew(acme: TenantHandle, clock: FixedClock) -> None:
    (digest,) = acme.objects.put([b"1"], holder="me")
    acme.objects.release("me")
    acme.objects.prune()
    acme.objects.put([b"1"], holder="you")
    assert acme.objects.usage().condemned == 0
    clock.advance(GRACE_S)
    acme.objects.release("you")
    assert acme.objects.prune() == Pruned(1, 0, 0), "the hour counts from when it was last held"
    assert acme.objects.has([digest]) == [True]


@pytest.mark.parametrize("grace", [-1, 2**31, 1.0, "0", None, True], ids=repr)
def test_a_grace_is_a_whole_number_of_seconds(acme: TenantHandle, grace: Any) -> None:
    with pytest.raises(InvalidInput, match="grace_s is a whole number"):
        acme.objects.prune(grace_s=grace)


def test_the_longest_grace_keeps_everything(acme: TenantHandle, clock: FixedClock) -> None:
    acme.objects.put([b"1"], holder="me")
    acme.objects.release("me")
    acme.objects.prune()
    clock.advance(86_400 * 365)
    assert acme.objects.prune(grace_s=2**31 - 1) == Pruned(0, 0, 0)


def test_a_prune_of_many_pages_looks_at_every_object(acme: TenantHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_PRUNED", 2)
    for start in range(0, 9, 3):
        acme.objects.put([bytes([number]) for number in range(start, start + 3)], holder=f"{start}")
    acme.objects.release("0")
    acme.objects.release("6")
    assert acme.objects.prune(grace_s=0) == Pruned(6, 6, 6)
    assert acme.objects.usage().count == 3


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_check_goes_through_all_objects_in_pieces_of_any_size(acme: TenantHandle, size: int) -> None:
    digests = sorted(acme.objects.put([bytes([number]) for number in range(4)], holder="me"))
    seen, after, ends = 0, None, []
    while True:
        checked = acme.objects.verify(limit=size, after=after)
        seen += checked.count
        after = checked.next
        if after is None:
            break
        ends.append(after)
    assert seen == 4
    assert ends == digests[size - 1 :: size]


@pytest.mark.parametrize(
    ("sql", "saying"),
    [
        ("UPDATE objects SET size_bytes = size_bytes + 1 WHERE tenant_id = :tenant_id", "size is not what was noted"),
        ("UPDATE objects SET stored_bytes = 1 WHERE tenant_id = :tenant_id", "size is not what was noted"),
        ("UPDATE objects SET body = X'00' WHERE tenant_id = :tenant_id", "has another digest"),
        ("UPDATE objects SET codec = 9 WHERE tenant_id = :tenant_id", "9"),
    ],
    ids=["size", "length", "body", "codec"],
)
def test_a_check_says_what_is_wrong_with_which_object(acme: TenantHandle, sql: str, saying: str) -> None:
    (digest,) = acme.objects.put([b"some text that is kept"], holder="me")
    execute(acme, sql)
    (damage,) = acme.objects.verify().damaged
    assert (damage.digest, list(damage.holders)) == (digest, ["me"])
    assert saying in damage.reason


def test_of_many_holders_of_a_damaged_object_the_first_few_are_named(acme: TenantHandle) -> None:
    for number in range(MAX_HOLDERS + 2):
        acme.objects.put([b"abc"], holder=f"holder {number:03}")
    execute(acme, "UPDATE objects SET size_bytes = 4 WHERE tenant_id = :tenant_id")
    (damage,) = acme.objects.verify().damaged
    assert list(damage.holders) == [f"holder {number:03}" for number in range(MAX_HOLDERS)]
    for number in range(MAX_HOLDERS + 2):
        acme.objects.release(f"holder {number:03}")
    assert [list(each.holders) for each in acme.objects.verify().damaged] == [[]]


@pytest.mark.parametrize(
    ("limit", "error"), [(0, InvalidInput), ("1", InvalidInput), (True, InvalidInput), (1_001, LimitExceeded)]
)
def test_a_check_takes_a_number_of_objects(acme: TenantHandle, limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="limit"):
        acme.objects.verify(limit=limit)


def test_a_tenant_may_fill_its_room_to_the_last_byte_and_no_further(acme: TenantHandle) -> None:
    full = [noise(1_000, seed) for seed in range(4)]
    digests = acme.objects.put(full, holder="me")
    with pytest.raises(LimitExceeded, match="object_bytes = 4,000"):
        acme.objects.put([b"x"], holder="me")
    assert acme.objects.usage().stored_bytes == 4_000
    assert acme.objects.put(full[:1], holder="you") == digests[:1], "what is here costs nothing"
    acme.objects.release("me", digests=digests[1:2])
    acme.objects.prune(grace_s=0)
    acme.objects.put([noise(1_000, 9)], holder="me")


def test_a_batch_that_does_not_fit_leaves_nothing_of_itself(acme: TenantHandle) -> None:
    with pytest.raises(LimitExceeded):
        acme.objects.put([noise(1_000, seed) for seed in range(5)], holder="me")
    assert (acme.objects.usage(), acme.objects.release("me")) == (Usage(0, 0, 0, 0), 0)


def test_what_a_store_wants_to_hold_and_is_gone_is_said_to_be(acme: TenantHandle) -> None:
    (digest,) = acme.objects.put([b"abc"], holder="me")
    scope, held = Scope(acme.name, acme._scope), bytes.fromhex(digest)

    def hold(*digests: bytes) -> None:
        step(acme._engine.write(lambda connection: objects.hold(connection, scope, digests, holder="store")))

    hold(held, held)
    assert acme.objects.release("store") == 1
    with pytest.raises(Stale, match=NEVER):
        hold(held, bytes(32))
    assert acme.objects.release("store") == 0, "all or none"


def test_a_body_that_is_elsewhere_must_be_there(acme: TenantHandle) -> None:
    packed, scope = bodies.pack(noise(50)), Scope(acme.name, acme._scope)
    gone = packed.without_body()
    assert (gone.is_in_pack, gone.length) == (True, 50)
    acme.objects.put([b"x"], holder="me")
    with pytest.raises(Stale, match="do it again"):
        step(acme._engine.write(lambda connection: objects.keep(connection, scope, [gone], holder="me")))
    acme.objects.put([noise(50)], holder="you")
    kept = step(acme._engine.write(lambda connection: objects.keep(connection, scope, [gone], holder="me")))
    assert kept == 0, "what is here is not new"


def test_what_was_kept_is_there_after_the_file_is_opened_again(tmp_path: Path) -> None:
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
def test_what_is_here_after_any_steps_is_what_somebody_holds(
    holdfast: Holdfast, steps: list[tuple[str, Any, Any]]
) -> None:
    there = holdfast.tenant(f"model {next(NUMBERS)}").objects
    held: set[tuple[str, bytes]] = set()
    for step_, name, wanted in steps:
        if step_ == "put":
            there.put(wanted, holder=name)
            held |= {(name, each) for each in wanted}
        elif step_ == "release":
            digests = None if wanted is None else [bodies.digest_of(each).hex() for each in wanted]
            gone = {pair for pair in held if pair[0] == name and (wanted is None or pair[1] in wanted)}
            assert there.release(name, digests=digests) == len(gone)
            held -= gone
        else:
            there.prune(grace_s=0)
            here = {each for _, each in held}
            assert (there.usage().count, there.usage().size_bytes) == (len(here), sum(map(len, here)))
    digests = [bodies.digest_of(each).hex() for each in sorted({each for _, each in held})]
    assert there.get(digests) == sorted({each for _, each in held})


def test_verifying_reads_no_more_than_a_page_may_have(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db"), limits=Limits(page_rows=3)) as holdfast:
        acme = holdfast.tenant("acme")
        acme.objects.put([bytes([number]) * 40 for number in range(7)], holder="h")
        seen, after = [], None
        while True:
            checked = acme.objects.verify(after=after)
            seen.append(checked.count)
            after = checked.next
            if after is None:
                break
        assert seen == [3, 3, 1]
