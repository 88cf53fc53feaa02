"""Pairing: codes, approvals and paired devices."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from holdfast.core.filters import column
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.ids import CODE_SYMBOLS
from holdfast.limits import Limits
from holdfast.types import PairedDevice, PairingRequest
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises

LIMITS = Limits()


@contract()
async def a_request_has_a_code_until_it_is_approved_or_expires(world: World) -> None:
    pairing = world.tenant().pairing
    request = await pairing.request("42", "telegram", chat="-100", account="bot", metadata={"name": "Ada"})
    assert len(request.code) == 8
    assert {*request.code} <= {*CODE_SYMBOLS}
    assert (request.expires_at - request.created_at).total_seconds() == LIMITS.pairing_code_s
    assert await pairing.request("42", "telegram") == request, "the sender has a code"
    assert await pairing.pending() == [request]
    assert not await pairing.is_paired("42", "telegram")
    device = await pairing.approve(request.code.lower(), by="ada")
    assert (device.sender, device.channel, device.chat, device.paired_by) == ("42", "telegram", "-100", "ada")
    assert device.metadata == {"name": "Ada"}
    assert (device.expires_at - device.paired_at).total_seconds() == LIMITS.paired_device_s
    assert await pairing.is_paired("42", "telegram")
    assert await pairing.pending() == []
    assert await pairing.paired() == [device]
    assert not await pairing.is_paired("42", "discord")
    assert not await pairing.is_paired("43", "telegram")
    assert not await world.tenant("other").pairing.is_paired("42", "telegram")


@contract()
async def a_code_and_a_device_end_at_their_time(world: World) -> None:
    pairing = world.tenant().pairing
    late = await pairing.request("late", "telegram")
    world.clock.advance(LIMITS.pairing_code_s - 1)
    punctual = await pairing.request("punctual", "telegram")
    assert (await pairing.approve(punctual.code)).sender == "punctual"
    assert await pairing.pending() == [late]
    world.clock.advance(1)
    assert await pairing.pending() == []
    for call in (pairing.approve, pairing.deny):
        with raises(NotFound, noun="pairing request", key=late.code):
            await call(late.code)
    again = await pairing.request("late", "telegram")
    assert again.id != late.id
    world.clock.advance(LIMITS.paired_device_s - 2)
    assert await pairing.is_paired("punctual", "telegram")
    world.clock.advance(1)
    assert not await pairing.is_paired("punctual", "telegram")
    assert await pairing.paired() == []
    with raises(NotFound, noun="paired device", key="punctual"):
        await pairing.revoke("punctual", "telegram")
    request = await pairing.request("punctual", "telegram")
    assert (await pairing.approve(request.code)).sender == "punctual", "the expired device is replaced"


@contract()
async def an_account_has_three_requests_and_a_sender_keeps_its_code(world: World) -> None:
    pairing = world.tenant().pairing
    requests = [await pairing.request(sender, "telegram") for sender in ("1", "2", "3")]
    assert len({request.code for request in requests}) == 3
    with raises(LimitExceeded, limit="pairing_requests", maximum=3):
        await pairing.request("4", "telegram")
    assert await pairing.request("2", "telegram") == requests[1], "the limit does not concern a sender with a code"
    await pairing.request("4", "telegram", account="other")
    await pairing.deny(requests[0].code)
    await pairing.request("5", "telegram")
    with raises(LimitExceeded, limit="pairing_requests"):
        await pairing.request("1", "telegram")
    world.clock.advance(LIMITS.pairing_code_s)
    assert {(await pairing.request(sender, "telegram")).sender for sender in "678"} == {*"678"}
    with raises(LimitExceeded, limit="pairing_requests"):
        await pairing.request("9", "telegram")


@contract()
async def a_paired_sender_is_renewed(world: World) -> None:
    pairing = world.tenant().pairing
    first = await pairing.approve((await pairing.request("42", "telegram")).code)
    world.clock.advance(1)
    renewed = await pairing.approve((await pairing.request("42", "telegram", chat="new")).code, by="eve")
    assert (renewed.id, renewed.chat, renewed.paired_by) == (first.id, "new", "eve")
    assert renewed.expires_at > first.expires_at
    assert await pairing.paired() == [renewed]
    await pairing.revoke("42", "telegram")
    assert not await pairing.is_paired("42", "telegram")
    with raises(NotFound, noun="paired device"):
        await pairing.revoke("42", "telegram")


@contract()
async def every_step_of_a_pairing_is_logged_without_its_code(world: World) -> None:
    acme = world.tenant()
    with acme.acting(user="ada"):
        codes = [(await acme.pairing.request(sender, "telegram")).code for sender in ("1", "2", "1")]
        assert (await acme.pairing.approve(codes[0])).paired_by == "ada"
        await acme.pairing.deny(codes[1])
        await acme.pairing.revoke("1", "telegram")
        with raises(NotFound):
            await acme.pairing.approve(codes[0])
    entries = [*reversed(await acme.activity.list(subject_kind="pairing"))]
    assert [(entry.action, entry.subject_id) for entry in entries] == [
        ("pairing.requested", "telegram/1"),
        ("pairing.requested", "telegram/2"),
        ("pairing.approved", "telegram/1"),
        ("pairing.denied", "telegram/2"),
        ("pairing.revoked", "telegram/1"),
    ]
    assert {entry.actor for entry in entries} == {"ada"}
    assert not any(code in repr(entries) for code in codes)


@contract()
async def any_text_can_be_paired_and_lists_are_paged_and_filtered(world: World) -> None:
    pairing = world.tenant().pairing
    texts = [text for text in TEXTS if text]
    for number, text in enumerate(texts):
        request = await pairing.request(text, text, chat=text, account=f"{number}{text}", metadata={"text": text})
        assert (request.sender, request.channel, request.chat, request.metadata) == (text, text, text, {"text": text})
        world.clock.advance(1)
    waiting = await pairing.pending()
    assert [request.sender for request in waiting] == texts[::-1]
    first_requests = await pairing.pending(limit=2)
    assert first_requests + await pairing.pending(cursor=first_requests.next) == waiting
    for request in waiting:
        await pairing.approve(request.code)
        world.clock.advance(1)
    paired = await pairing.paired()
    assert [device.sender for device in paired] == texts
    first_devices = await pairing.paired(limit=2)
    assert first_devices + await pairing.paired(cursor=first_devices.next) == paired
    assert [device.sender for device in await pairing.paired(where=[column("channel").eq(texts[0])])] == [texts[0]]
    for call in (pairing.pending, pairing.paired):
        with raises(InvalidFilter):
            await call(where=[column("slot").eq(1)])
        with raises(InvalidFilter, field="cursor"):
            await call(cursor="nonsense")


@contract(limits=Limits(name_bytes=10, metadata_bytes=20))
async def input_that_is_not_valid_pairs_nothing(world: World) -> None:
    pairing = world.tenant().pairing
    for sender, channel in (("", "telegram"), ("42", ""), (None, "telegram"), (42, "telegram")):
        with raises(InvalidInput):
            await pairing.request(sender, channel)  # type: ignore[arg-type]
    with raises(LimitExceeded, limit="name_bytes"):
        await pairing.request("x" * 11, "telegram")
    with raises(LimitExceeded, limit="metadata_bytes"):
        await pairing.request("42", "telegram", metadata={"x": "x" * 30})
    assert await pairing.pending() == []
    wrong: tuple[Any, ...] = ("", "ABCDEFG", "ABCDEFGHJ", "ABCDEFGI", "ABCDEFG0", None, 12345678)
    for code in wrong:
        for call in (pairing.approve, pairing.deny):
            with raises(InvalidInput, field="code"):
                await call(code)
    with raises(NotFound, noun="pairing request", key="ABCDEFGH"):
        await pairing.approve("ABCDEFGH")
    assert await pairing.paired() == []


@contract("concurrency")
async def concurrent_requests_stay_within_the_limit(world: World) -> None:
    for attempt in range(3):
        pairing = world.tenant(f"races {attempt}").pairing
        calls = [partial(pairing.request, f"{number}", "telegram") for number in range(8)]
        results = await world.together(*calls)
        assert Counter(type(result) for result in results) == {PairingRequest: 3, LimitExceeded: 5}, results
        assert len(await pairing.pending()) == 3


@contract("concurrency")
async def concurrent_requests_of_one_sender_get_one_code(world: World) -> None:
    pairing = world.tenant().pairing
    results = await world.together(*[partial(pairing.request, "42", "telegram")] * 8)
    assert len({getattr(result, "code", result) for result in results}) == 1, results


@contract("concurrency")
async def one_of_several_concurrent_approvals_wins_and_the_others_are_told(world: World) -> None:
    pairing = world.tenant().pairing
    request = await pairing.request("42", "telegram")
    results = await world.together(*[partial(pairing.approve, request.code)] * 8)
    assert Counter(type(result) for result in results) == {PairedDevice: 1, NotFound: 7}, results
    both = await pairing.request("43", "telegram")
    calls: list[Any] = [partial(call, both.code) for call in (pairing.approve, pairing.deny) * 4]
    results = await world.together(*calls)
    assert Counter(type(result) for result in results)[NotFound] == 7, results
    assert await pairing.is_paired("43", "telegram") is (None not in results)
