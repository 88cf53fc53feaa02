"""CrewAI's memory on either engine: the storage protocol, CrewAI's Memory class on top of it, and additional guarantees."""

from __future__ import annotations

import asyncio
import inspect
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from crewai import Memory
from crewai.memory.storage.backend import EmbeddingDimensionMismatchError, StorageBackend
from crewai.memory.storage.lancedb_storage import LanceDBStorage
from crewai.memory.types import MemoryRecord

from holdfast import Holdfast, Limits, TenantHandle
from holdfast.adapters.crewai import HoldfastMemory, install, uninstall

FIRST = datetime(2026, 1, 1)  # noqa: DTZ001 - as CrewAI makes them
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def embedder(texts: list[str]) -> list[list[float]]:
    """Embed texts by their letters: texts with the same letters are similar."""
    return [[float(text.lower().count(letter)) + 0.01 for letter in LETTERS] for text in texts]


def record(id: str, vector: list[float] | None = None, **values: Any) -> MemoryRecord:
    return MemoryRecord(id=id, content=values.pop("content", f"about {id}"), embedding=vector, **values)


def ids_of(answers: list[tuple[MemoryRecord, float]]) -> list[str]:
    return [record.id for record, _ in answers]


@pytest.fixture
def storage(acme: TenantHandle) -> HoldfastMemory:
    return HoldfastMemory(acme)


@pytest.fixture
def memory(storage: HoldfastMemory) -> Memory:
    """CrewAI's Memory class, which calls no model if all fields are given."""
    return Memory(storage=storage, llm=SimpleNamespace(), embedder=embedder)


def test_it_implements_the_storage_backend_with_the_same_signatures(storage: HoldfastMemory) -> None:
    assert isinstance(storage, StorageBackend)
    for name, method in inspect.getmembers(StorageBackend, inspect.isfunction):
        if not name.startswith("_"):
            theirs = inspect.signature(method).parameters
            ours = inspect.signature(getattr(HoldfastMemory, name)).parameters
            assert [(parameter.name, parameter.default) for parameter in ours.values()] == [
                (parameter.name, parameter.default) for parameter in theirs.values()
            ], name


def test_a_record_is_stored_and_read_unchanged(storage: HoldfastMemory) -> None:
    whole = record(
        "a",
        [0.5, 0.25],
        content="text \x00 é",
        scope="/company/team",
        categories=["fact"],
        metadata={"n": [1, None]},
        importance=0.9,
        created_at=FIRST,
        last_accessed=FIRST + timedelta(microseconds=1),
        source="ada",
        private=True,
    )
    storage.save([whole])
    assert storage.get_record("a") == whole
    assert storage.get_record("a").embedding == [0.5, 0.25]  # type: ignore[union-attr]
    assert storage.get_record("absent") is None
    storage.update(whole.model_copy(update={"content": "other"}))
    assert storage.get_record("a") == whole.model_copy(update={"content": "other"})
    assert storage.count() == 1


def test_all_memories_are_kept(storage: HoldfastMemory) -> None:
    storage.save([record(f"{n:04}", [1.0, n], created_at=FIRST + timedelta(hours=n)) for n in range(1_200)])
    assert storage.count() == 1_200
    assert [record.id for record in storage.list_records(limit=3, offset=1)] == ["1198", "1197", "1196"]
    assert len(storage.list_records(limit=1_100)) == 1_100
    assert storage.list_records(limit=0) == storage.list_records(offset=-1) == []
    assert ids_of(storage.search([0.0, 1.0], limit=2)) == ["1199", "1198"]
    assert storage.search([0.0, 1.0], limit=0) == storage.search([]) == []


def test_small_limits_do_not_change_results(address: str) -> None:
    with Holdfast(address, limits=Limits(page_rows=3, batch_rows=4), auto_migrate=True) as holdfast:
        storage = HoldfastMemory(holdfast.tenant("acme"))
        storage.save([record(str(number), [1.0, 0.0]) for number in range(10)])
        assert {record.id for record in storage.list_records()} == {str(number) for number in range(10)}
        assert len(storage.list_records(limit=7)) == 7
        assert storage.reembed(lambda texts: [[0.0, 1.0, 0.0]] * len(texts)) == 10
        assert all(record.embedding == [0.0, 1.0, 0.0] for record in storage.list_records())


def test_it_behaves_like_crewais_own_storage(storage: HoldfastMemory, tmp_path: Any) -> None:
    """The same calls return the same results on CrewAI's own storage."""
    theirs = LanceDBStorage(path=tmp_path / "lance", vector_dim=3)
    both: list[Any] = [storage, theirs]
    scopes = ["/", "/a", "/a/b", "/a/c/d", "/z"]
    for backend in both:
        backend.save(
            [
                record(
                    f"{n}",
                    [math.cos(n / 5), math.sin(n / 5), 0.0],
                    scope=scopes[n],
                    categories=["even"] if n % 2 == 0 else ["odd", "rest"],
                    metadata={"n": n},
                    created_at=FIRST + timedelta(days=n),
                    last_accessed=FIRST,
                )
                for n in range(5)
            ]
        )

    def same(ask: Any) -> Any:
        answers = [ask(backend) for backend in both]
        assert answers[0] == answers[1], inspect.getsource(ask)
        return answers[0]

    assert same(lambda backend: ids_of(backend.search([1.0, 0.0, 0.0], limit=3))) == ["0", "1", "2"]
    same(lambda backend: ids_of(backend.search([1.0, 0.0, 0.0], scope_prefix="/a")))
    same(lambda backend: ids_of(backend.search([1.0, 0.0, 0.0], categories=["odd"])))
    same(lambda backend: ids_of(backend.search([1.0, 0.0, 0.0], metadata_filter={"n": 3})))
    same(lambda backend: [record.id for record in backend.list_records(scope_prefix="/a")])
    same(lambda backend: backend.list_scopes())
    same(lambda backend: backend.list_scopes("/a"))
    same(lambda backend: backend.get_scope_info("/a"))
    same(lambda backend: backend.get_scope_info("/"))
    same(lambda backend: backend.list_categories())
    same(lambda backend: backend.list_categories("/a"))
    same(lambda backend: (backend.count(), backend.count("/a"), backend.count("/none")))
    same(lambda backend: backend.get_record("3"))
    same(lambda backend: backend.delete(record_ids=["0", "absent"]))
    same(lambda backend: backend.delete(categories=["odd"], metadata_filter={"n": 1}))
    same(lambda backend: backend.delete(older_than=FIRST + timedelta(days=3)))
    assert same(lambda backend: sorted(record.id for record in backend.list_records())) == ["3", "4"]
    same(lambda backend: backend.reset("/a"))
    same(lambda backend: backend.count())
    same(lambda backend: backend.reset())
    assert same(lambda backend: backend.count()) == 0


def test_a_scope_is_matched_as_a_path_and_not_as_a_prefix(storage: HoldfastMemory) -> None:
    storage.save([record("a", [1.0], scope="/team"), record("b", [1.0], scope="/teams")])
    assert ids_of(storage.search([1.0], scope_prefix="/team")) == ["a"]
    assert storage.count("/team") == 1
    assert storage.delete(scope_prefix="/team") == 1
    assert storage.count() == 1


def test_crewais_memory_remembers_recalls_and_forgets(memory: Memory, storage: HoldfastMemory) -> None:
    for n, text in enumerate(["the parcel is late", "she likes tea", "invoices go to finance"]):
        memory.remember(text, scope="/shop", categories=["fact"], importance=0.5, metadata={"n": n}, source="ada")
    assert storage.count("/shop") == 3
    (best, *_) = memory.recall("a late parcel", scope="/shop", depth="shallow", limit=2)
    assert best.record.content == "the parcel is late"
    used = storage.get_record(best.record.id)
    assert used is not None
    assert used.last_accessed >= used.created_at
    assert memory.forget(scope="/shop", record_ids=[best.record.id]) == 1
    assert [match.record.content for match in memory.recall("a late parcel", depth="shallow", limit=1)] != [
        "the parcel is late"
    ]
    memory.reset()
    assert storage.count() == 0


def test_memories_are_available_in_another_process(address: str) -> None:
    for number in range(2):
        storage = HoldfastMemory(address)
        memory = Memory(storage=storage, llm=SimpleNamespace(), embedder=embedder)
        assert storage.count() == number
        memory.remember(f"fact {'xyz'[number] * 20}", scope="/s", categories=["c"], importance=0.1, metadata={"n": 1})
        memory.close()


def test_memories_survive_a_change_of_the_embedding_model(storage: HoldfastMemory) -> None:
    storage.save([record(f"{n}", [1.0, n], content=LETTERS[n] * 9) for n in range(5)])
    with pytest.raises(EmbeddingDimensionMismatchError) as caught:
        storage.search(embedder(["aaa"])[0])
    assert (caught.value.stored_dim, caught.value.new_dim) == (2, 26)
    with pytest.raises(EmbeddingDimensionMismatchError):
        storage.save([record("new", embedder(["zzz"])[0])])
    before = {record.id: record.model_dump() for record in storage.list_records()}
    assert storage.reembed(embedder) == 5
    assert ids_of(storage.search(embedder(["ddd"])[0], limit=1)) == ["3"]
    assert {record.id: record.model_dump() for record in storage.list_records()} == before


def test_concurrent_saves_lose_no_memories(storage: HoldfastMemory) -> None:
    def save(number: int) -> None:
        storage.save([record(f"{number}-{n}", [1.0, n]) for n in range(5)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(20)))
    assert storage.count() == 100


def test_it_works_inside_an_event_loop(storage: HoldfastMemory) -> None:
    async def work() -> list[Any]:
        await storage.asave([record("a", [1.0, 0.0]), record("b", [0.0, 1.0], categories=["x"])])
        answers = [ids_of(await storage.asearch([1.0, 0.0], limit=1))]
        answers.append(await storage.adelete(categories=["x"]))
        return [*answers, storage.count()]

    assert asyncio.run(work()) == [["a"], 1, 1]


def test_users_and_threads_are_apart(acme: TenantHandle) -> None:
    places: list[dict[str, Any]] = [{}, {"user": "ada"}, {"thread_id": "t"}]
    for number, place in enumerate(places):
        HoldfastMemory(acme, **place).save([record("m", [1.0], content=str(number))])
    for number, place in enumerate(places):
        assert [record.content for record in HoldfastMemory(acme, **place).list_records()] == [str(number)]


def test_once_installed_memories_need_name_nothing(acme: TenantHandle, tmp_path: Any) -> None:
    install(acme)
    try:
        memory = Memory(llm=SimpleNamespace(), embedder=embedder)
        memory.remember("kept here", scope="/s", categories=["c"], importance=0.5, metadata={"n": 1})
        assert [memory.content for memory in acme.crew_memories.list()] == ["kept here"]
        assert isinstance(Memory(storage=str(tmp_path / "own"))._storage, LanceDBStorage), "who names one gets it"
    finally:
        uninstall()


def test_the_keys_of_metadata_keep_their_order(storage: HoldfastMemory) -> None:
    metadata = {"zebra": 1, "a": {"long": 1, "b": 2, "aa": 3}, "bb": [{"y": 1, "x": 2}]}
    storage.save([MemoryRecord(id="m", content="c", metadata=metadata, embedding=[1.0, 0.0])])
    assert [repr(record.metadata) for record in storage.list_records()] == [repr(metadata)]
    assert [repr(hit.metadata) for hit, _ in storage.search([1.0, 0.0])] == [repr(metadata)]
