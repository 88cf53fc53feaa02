"""General feedback: the user is a part of its key. ``records.py`` covers the behaviour of all record stores."""

from __future__ import annotations

from holdfast.core.filters import column
from holdfast.errors import NotFound
from holdfast.stores.conversation.general_feedback import NewGeneralFeedback
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises


@contract()
async def general_feedback_is_separate_per_user_and_listed_oldest_first(world: World) -> None:
    feedback = world.tenant().general_feedback
    for number in range(5):
        await feedback.create(NewGeneralFeedback(f"{number}", True, user="ada"))
    other = await feedback.create(NewGeneralFeedback("mine", False, "tool", message_number=-7, user="bob"))
    assert [row.feedback_text for row in await feedback.list(where=[column("user").eq("bob")])] == ["mine"]
    result = await feedback.list(where=[column("user").eq("ada")])
    assert [item.feedback_text for item in result] == ["0", "1", "2", "3", "4"]
    for user in ((), ("ada",)):
        with raises(NotFound, noun="general feedback"):
            await feedback.delete(other.id, *user)
    await feedback.delete(other.id.upper(), "bob")
    assert await feedback.count(where=[column("user").eq("bob")]) == 0
