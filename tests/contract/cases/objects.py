"""Objects: stored once, held by name, removed only without holders."""

from __future__ import annotations

from typing import Any

from holdfast.core.objects import digest_of
from holdfast.errors import InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.objects.objects import GRACE_S, Pruned
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises

LARGE = b"a large body, and its end \x00\xff" * 1_000


@contract()
async def a_body_is_stored_under_its_digest(world: World) -> None:
    objects = world.tenant().objects
    contents = [b"", b"x", b"\x00\xff" * 40, LARGE, bytes(range(256)) * 50]
    digests = await objects.put(contents, holder="me")
    assert digests == [digest_of(content).hex() for content in contents]
    assert list(await objects.get(digests)) == contents
    assert list(await objects.get([digests[3], digests[0], digests[3]])) == [LARGE, b"", LARGE]
    assert await objects.has([digests[1], "00" * 32]) == [True, False]
    assert list(await objects.get([])) == []


@contract()
async def the_same_body_is_stored_once_and_compressed(world: World) -> None:
    objects = world.tenant().objects
    first = await objects.put([LARGE, LARGE], holder="a")
    second = await objects.put([LARGE], holder="b")
    assert first == [second[0]] * 2
    usage = await objects.usage()
    assert (usage.count, usage.size_bytes, usage.condemned) == (1, len(LARGE), 0)
    assert usage.stored_bytes < len(LARGE) / 20
    assert (await world.tenant("zenith").objects.usage()).count == 0


@contract()
async def objects_without_holders_are_removed_in_two_steps(world: World) -> None:
    objects = world.tenant().objects
    kept, removed = await objects.put([b"kept", b"gone" * 100], holder="a")
    await objects.put([b"kept"], holder="b")
    assert await objects.release("a") == 2
    assert await objects.release("a") == 0
    assert await objects.prune() == Pruned(1, 0, 0)
    assert await objects.has([kept, removed]) == [True, True]
    world.clock.advance(GRACE_S - 1)
    assert await objects.prune() == Pruned(0, 0, 0)
    world.clock.advance(1)
    assert await objects.prune() == Pruned(0, 1, 400)
    assert await objects.has([kept, removed]) == [True, False]
    with raises(NotFound, noun="object", key=removed):
        await objects.get([kept, removed])


@contract()
async def an_object_that_is_held_again_before_its_removal_stays(world: World) -> None:
    objects = world.tenant().objects
    (digest,) = await objects.put([LARGE], holder="a")
    assert await objects.release("a", digests=[digest, "00" * 32]) == 1
    assert (await objects.prune()).condemned == 1
    assert (await objects.usage()).condemned == 1
    await objects.put([LARGE], holder="b")
    world.clock.advance(GRACE_S * 2)
    assert await objects.prune() == Pruned(0, 0, 0)
    assert list(await objects.get([digest])) == [LARGE]


@contract()
async def verify_reads_all_objects_page_by_page(world: World) -> None:
    objects = world.tenant().objects
    await objects.put([bytes([n]) * 50 for n in range(25)], holder="a")
    count, after = 0, None
    while True:
        checked = await objects.verify(limit=10, after=after)
        assert checked.damaged == []
        count, after = count + checked.count, checked.next
        if after is None:
            break
    assert count == 25
    assert (await objects.verify(limit=1_000)).next is None


@contract(limits=Limits(content_bytes=10, batch_rows=2, key_bytes=8))
async def objects_have_limits(world: World) -> None:
    objects = world.tenant().objects
    with raises(LimitExceeded, limit="content_bytes", maximum=10):
        await objects.put([b"x" * 11], holder="a")
    with raises(LimitExceeded, limit="batch_rows", maximum=2):
        await objects.put([b"x"] * 3, holder="a")
    with raises(LimitExceeded, limit="key_bytes", maximum=8):
        await objects.put([b"x"], holder="a" * 9)
    wrong: list[Any] = ["text", 7, None]
    for value in wrong:
        with raises(InvalidInput):
            await objects.put([value], holder="a")
        with raises(InvalidInput):
            await objects.get([value])
    with raises(InvalidInput):
        await objects.prune(grace_s=-1)
    assert (await objects.usage()).count == 0


@contract("concurrency")
async def bodies_put_during_a_prune_are_never_lost(world: World) -> None:
    """A caller whose put has returned finds the body, whatever was removed at the same time."""
    objects = world.tenant().objects
    contents = [b"%d" % n * 100 for n in range(6)]
    digests = await objects.put(contents, holder="old")
    for number in range(6):
        await objects.release("old" if number == 0 else f"h{number - 1}")
        await objects.prune(grace_s=0)
        await world.together(
            lambda: objects.prune(grace_s=0),
            lambda number=number: objects.put(contents, holder=f"h{number}"),  # type: ignore[misc]
            lambda: objects.prune(grace_s=0),
        )
        await objects.prune(grace_s=0)
        assert list(await objects.get(digests)) == contents
