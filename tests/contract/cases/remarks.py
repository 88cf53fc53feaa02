"""Remarks: what people think, where no message is kept that it could be about."""

from __future__ import annotations

from holdfast.clock import from_us
from holdfast.errors import InvalidFilter
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises


async def _a_remark_comes_back_as_it_was(world: World, name: str) -> None:
    remarks = world.tenant(name).remarks
    assert await remarks.list() == []
    for text in TEXTS:
        if text:
            made = await remarks.create(text, is_positive=False, issue_type="tool", message_number=-7)
            assert (made.feedback_text, made.issue_type, made.message_number) == (text, "tool", -7)
    found = await remarks.list()
    assert [each.feedback_text for each in found] == [text for text in TEXTS if text], "the oldest first"
    assert {each.created_at for each in found} == {from_us(world.clock.now_us())}


async def _remarks_of_users_are_apart_and_come_in_pages(world: World, name: str) -> None:
    remarks = world.tenant(name).remarks
    for number in range(5):
        await remarks.create(f"{number}", is_positive=True, user="ada")
    other = await remarks.create("mine", is_positive=True, user="bob")
    assert [each.feedback_text for each in await remarks.list(user="bob")] == ["mine"]
    page = await remarks.list(user="ada", limit=3)
    rest = await remarks.list(user="ada", limit=3, cursor=page.next)
    assert [each.feedback_text for each in [*page, *rest]] == ["0", "1", "2", "3", "4"]
    assert rest.next is None
    assert await remarks.delete(other.id, user="ada") is False
    assert await remarks.delete(other.id, user="bob") is True
    assert await remarks.list(user="bob") == []
    with raises(InvalidFilter):
        await remarks.list(cursor="nonsense")


@contract()
async def remarks_are_kept_and_each_users_own(world: World) -> None:
    for part in (_a_remark_comes_back_as_it_was, _remarks_of_users_are_apart_and_come_in_pages):
        await part(world, part.__name__)
