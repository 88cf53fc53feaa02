"""The contract: what every engine and every driver must do, written once and shipped.

A *case* is a coroutine that states one promise. It is handed a *world*: handles of tenants, a clock it can move, and a way to
do several things at once. A *leg* makes worlds: an engine with a driver and a style of calling, on connections of its
own or joined to a caller's transaction. For synchronous legs each call of the public synchronous class is made
awaitable, so a case never knows which it is talking to. After a joined leg has run a case, the caller rolls back, and the
database must equal its dump from before.

The legs of Holdfast itself are in ``tests.contract.legs``. To run the contract for a driver of your own, give it a leg and
let your test runner play every case on it::

    from tests.contract.cases import can, cases, play
    from tests.contract.legs import JoinedLeg, PostgresPlace

    class MyCaller:                                # one connection of your driver, with your transaction open on it
        def __init__(self, connection): self.connection = connection
        async def execute(self, sql): ...          # run one statement of the caller's own, return its rows
        async def begin(self): ...                 # begin the next transaction
        async def commit(self): ...                # end it and keep everything
        async def rollback(self): ...              # end it and undo everything

    @asynccontextmanager
    async def connect(url):                        # open, begin, and close at the end
        ...
        yield MyCaller(connection)

    leg = JoinedLeg("mine", PostgresPlace(url), connect, asynchronous=True)

    @pytest.mark.parametrize("case", [case for case in cases() if can(leg, case)], ids=str)
    def test_contract(case):
        play(case, leg)

A leg may lack a capability a case needs (``concurrency``, ``tenants``, ``reopening``, ``joining``); it must say so in
``missing``, with the reason. A case fails if its leg lacks a feature that it needs, and also if it is skipped.
"""

from tests.contract.cases.suite import CAPABILITIES, Case, Leg, Skipped, can, cases, contract, play
from tests.contract.cases.world import Caller, World, raises

__all__ = ["CAPABILITIES", "Caller", "Case", "Leg", "Skipped", "World", "can", "cases", "contract", "play", "raises"]
