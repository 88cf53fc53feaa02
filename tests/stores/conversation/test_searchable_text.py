"""Words of a message, the parsing of queries, and snippets."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.dialect import Dialect
from holdfast.errors import InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.conversation.search import searchable_text
from holdfast.stores.conversation.search.query import (
    MAX_OCCURRENCES,
    WORDS_PER_MENTION,
    add_tags,
    index_queries,
    parse,
    tag_of,
    words_to_store,
)
from holdfast.stores.conversation.search.searchable_text import (
    BREAK,
    MAX_WORDS,
    MAX_WORDS_BYTES,
    SNIPPET_CHARS,
    WORD_CHARS,
    Marker,
    Term,
    text_of,
    words_of,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=80)  # lone surrogates, too
SESSION = "01890000-0000-7000-8000-000000000001"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Two words", ["two", "words"]),
        ("don't snake_case a.b/c", ["don", "t", "snake", "case", "a", "b", "c"]),
        ("Crème BRÛLÉE", ["creme", "brulee"]),
        ("e\u0301 E\u0301 é", ["e", "e", "e"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("İstanbul ISTANBUL", ["istanbul", "istanbul"]),
        ("ΣΊΣΥΦΟΣ σίσυφος", ["σισυφοσ", "σισυφοσ"]),
        ("ﬁne ２０２６ x² ½", ["fine", "2026", "x2", "1", "2"]),
        ("soft\u00adhyphen zero\u200bwidth", ["softhyphen", "zerowidth"]),
        ("北京 is", ["北", "京", "is"]),
        ("カタカナ", ["カ", "タ", "カ", "ナ"]),
        ("हिन्दी", ["हिन्दी"]),
        ("שָׁלוֹם", ["שלום"]),
        ("北 Bei京jing", ["北", "bei", "京", "jing"]),
        ("go 🚀🎉! ❤\ufe0f", ["go", "🚀", "🎉", "❤"]),
        ("│ a │", ["a"]),
        ("", []),
        ("\x00\ud800 \U0010f800", []),
    ],
)
def test_words_are_folded_letters_and_digits(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(ANY_TEXT)
def test_words_contain_no_syntax_of_an_index(text: str) -> None:
    for word in words_of(text.replace(BREAK, f" {BREAK} ")):  # as text_of joins the texts of a message
        assert word
        assert not set(word) & set(" '\"\\:*\t\n\x00()&|!<>\x80\x81\x82")
        word.encode()  # no lone surrogate
        assert word == BREAK or all(char.isalnum() for char in word if char.isascii())


@given(ANY_TEXT)
def test_words_ignore_case_and_normal_form(text: str) -> None:
    """Except for the few letters whose case mapping in Unicode is not reversible."""
    for form in ("NFC", "NFD"):
        assert words_of(unicodedata.normalize(form, text)) == words_of(text)
    folded = text.casefold()
    assert words_of(folded.casefold()) == words_of(folded)


@given(ANY_TEXT, ANY_TEXT)
def test_the_words_of_two_texts_are_the_words_of_both(one: str, other: str) -> None:
    assert words_of(f"{one} {other}") == words_of(one) + words_of(other)


def test_splitting_words_again_changes_nothing() -> None:
    words = words_of("Crème brûlée 北京 don't हिन्दी 🚀 ﬁne カ゛")
    assert words_of(" ".join(words)) == words


def test_long_texts_and_words_are_cut() -> None:
    assert len(words_of("a " * (MAX_WORDS + 5))) == MAX_WORDS
    assert words_of("x" * 1_000) == ["x" * WORD_CHARS]
    heavy = words_of(" ".join("𝔸" * 0 + "ก" + "व" * 60 + str(n) for n in range(9_000)))
    assert sum(len(word.encode()) for word in heavy) <= MAX_WORDS_BYTES < 9_000 * 180
    assert len(heavy) > 500
    assert words_of("." * searchable_text.MAX_CHARS + " late") == []


def test_the_text_of_a_message_is_its_conversation() -> None:
    blocks = [
        {"type": "text", "text": "hello"},
        {"type": "tool_use", "id": "t1", "name": "find", "input": {"type": "kind", "ids": ["x"], "n": 1}},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found"}]},
        {"type": "tool_result", "tool_use_id": "t1", "content": "plain"},
        {"type": "tool_result", "tool_use_id": "t1"},
        {"type": "image", "source": {"type": "url", "url": "pic", "data": "AAAA"}},
        {"type": "text", "text": ""},
    ]
    pieces = ["hello", "find", "kind", "x", "found", "plain", "pic"]
    assert text_of("message", blocks) == f" {BREAK} ".join(pieces)
    assert text_of("message", []) == ""
    assert text_of("message", [{"type": "text", "text": f"a{BREAK}b"}]) == "a b"
    assert text_of("message", [{"type": "text", "text": 7}, {"type": "text"}]) == ""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("words", "words"),
        (7, ""),
        (None, ""),
        (["a", ["b", {"c": "d"}]], f"a {BREAK} b {BREAK} d"),
        ({"type": "x", "id": "y", "role": "z", "call_id": "w", "name": "kept"}, "kept"),
        ({"encrypted_content": "no", "signature": "no", "data": "no", "text": "yes"}, "yes"),
    ],
)
def test_other_kinds_of_messages_have_all_their_strings(content: object, text: str) -> None:
    assert text_of("adk.event", content) == text


def test_no_phrase_matches_across_two_texts() -> None:
    words = words_of(text_of("k", ["one two", "three"]))
    assert words == ["one", "two", BREAK, "three"]
    stored_words = words_to_store(words, "acme", SESSION, Dialect.POSTGRES)
    tag = tag_of("acme", Dialect.POSTGRES)
    assert f"'{tag}two':2" in stored_words
    assert f"'{tag}three':4" in stored_words
    assert BREAK not in stored_words
    assert BREAK not in words_to_store(words, "acme", SESSION, Dialect.SQLITE)


LIMITS = Limits()


@pytest.mark.parametrize(
    ("query", "required", "excluded"),
    [
        ("one Two", [("one",), ("two",)], []),
        ('"one two" three', [("one", "two"), ("three",)], []),
        ('one -two -"three four"', [("one",)], [("two",), ("three", "four")]),
        ("don't e-mail", [("don", "t"), ("e", "mail")], []),
        ('"never closed', [("never", "closed")], []),
        ('a"b c"d', [("a",), ("b", "c"), ("d",)], []),
        ("--a b -", [("b",)], [("a",)]),
        ("北京 x", [("北", "京"), ("x",)], []),
        ("a a A", [("a",)], []),
        (f"a{BREAK}b {BREAK}", [("a",), ("b",)], []),
        ("OR AND NOT", [("or",), ("and",), ("not",)], []),
    ],
)
def test_a_query_is_parsed(query: str, required: list[tuple[str, ...]], excluded: list[tuple[str, ...]]) -> None:
    parsed = parse(query, LIMITS)
    assert [term.words for term in parsed.required] == required
    assert [term.words for term in parsed.excluded] == excluded
    assert not any(term.prefix for term in [*parsed.required, *parsed.excluded])


@pytest.mark.parametrize("query", ["begin*", '"begin"*', "begin**", '"begin*"*'])
def test_a_star_at_the_end_is_a_prefix_search(query: str) -> None:
    assert parse(query, LIMITS).required == (Term(("begin",), True),)


def test_a_star_elsewhere_is_ignored() -> None:
    assert parse("*a b*c", LIMITS).required == (Term(("a",)), Term(("b", "c")))
    assert parse('"a b*"', LIMITS).required == (Term(("a", "b")),)
    assert parse('x -"a b"*', LIMITS).excluded == (Term(("a", "b"), True),)


@given(ANY_TEXT)
def test_any_text_is_a_query_or_has_no_word(query: str) -> None:
    try:
        parsed = parse(query, LIMITS)
    except InvalidInput:
        assert not words_of(query) or "-" in query or BREAK in query
        return
    for dialect in Dialect:
        for matched in index_queries(parsed, "acme", SESSION, dialect):
            matched.encode()
            assert matched.count("(") == matched.count(")")
            assert matched.count('"') % 2 == matched.count("'") % 2 == 0


def test_queries_have_limits() -> None:
    with pytest.raises(LimitExceeded):
        parse("a " * (LIMITS.query_words + 1) + "b", Limits(query_words=1))
    with pytest.raises(LimitExceeded):
        parse("a" * (LIMITS.query_chars + 1), LIMITS)


def test_the_queries_of_both_engines() -> None:
    query = parse('one "two three"* -four', LIMITS)
    tag = tag_of("acme")
    sure, passing = index_queries(query, "acme", None, Dialect.SQLITE)
    assert sure == (
        f'("{tag}one" AND "{tag}two {tag}three" *)'
        f' NOT ("{tag}\x80one" OR "{tag}\x80two" OR "{tag}\x80three" * OR "{tag}four")'
    )
    assert passing.startswith(f'("{tag}one" AND "{tag}two {tag}three" * AND ("{tag}\x80one" OR ')
    sure, passing = index_queries(query, "acme", SESSION, Dialect.POSTGRES)
    tag = tag_of("acme", Dialect.POSTGRES)
    assert f"('{tag}two' <-> '{tag}three':*)" in sure
    assert f"('{tag}\x81{SESSION.replace('-', '')}')" in sure
    assert sure.endswith(f"& !(('{tag}\x80one') | ('{tag}\x80two') | ('{tag}\x80three':*) | ('{tag}four'))")
    assert passing.endswith(f"& !(('{tag}four'))")


def test_tags_of_tenants_differ_and_are_plain() -> None:
    names = [f"tenant {n}" for n in range(2_000)]
    tags = {tag_of(name) for name in names}
    assert len(tags) == 2_000
    assert all(tag.isascii() and tag.isalnum() and tag == tag.lower() and len(tag) == 8 for tag in tags)
    assert len({tag_of(name, Dialect.POSTGRES) for name in names}) > 1_800


def test_words_are_stored_with_tags_and_positions() -> None:
    words = ["one", "two", "one"]
    tag, session = tag_of("acme"), f"\x81{SESSION.replace('-', '')}"
    stored_words = words_to_store(words, "acme", SESSION, Dialect.SQLITE)
    assert stored_words == f"one two one {session}"
    assert add_tags(stored_words, "acme") == f" {tag}one {tag}two {tag}one {tag}{session}"
    tag = tag_of("acme", Dialect.POSTGRES)
    assert words_to_store(words, "acme", SESSION, Dialect.POSTGRES) == (f"'{tag}one':1,3 '{tag}two':2 '{tag}{session}'")


def test_occurrences_of_a_word_are_limited() -> None:
    words = ["a"] * MAX_OCCURRENCES + ["a", "b"]
    sqlite = words_to_store(words, "acme", SESSION, Dialect.SQLITE).split()
    assert sqlite.count("a") == MAX_OCCURRENCES
    assert sqlite[MAX_OCCURRENCES : MAX_OCCURRENCES + 2] == ["\x82", "b"]
    postgres = words_to_store(words, "acme", SESSION, Dialect.POSTGRES)
    assert postgres.split()[0].endswith(f",{MAX_OCCURRENCES}")
    assert f"b':{MAX_OCCURRENCES + 2}" in postgres


def test_a_word_is_mentioned_in_passing_if_it_is_rare_in_a_long_text() -> None:
    def passing(words: list[str]) -> set[str]:
        stored_words = words_to_store(words, "acme", SESSION, Dialect.SQLITE).split(" ")
        return {word[1:] for word in stored_words if word.startswith("\x80")}

    assert passing(["a", "b"] * (WORDS_PER_MENTION // 2)) == set()
    assert passing(["a"] * (WORDS_PER_MENTION - 1) + ["b"]) == set()
    assert passing(["a"] * WORDS_PER_MENTION + ["b"]) == {"b"}
    assert passing(["a"] * WORDS_PER_MENTION * 2 + ["b"] * 2) == {"b"}
    assert passing(["a"] * WORDS_PER_MENTION * 2 + ["b"] * 3) == set()


def shown(text: str, *words: str, prefix: bool = False) -> str:
    return Marker([Term(tuple(word.split()), prefix) for word in words], "[", "]").snippet(text)


@pytest.mark.parametrize(
    ("text", "words", "snippet"),
    [
        ("one two three", ["two"], "one [two] three"),
        ("One TWO. three", ["one", "two"], "[One] [TWO]. three"),
        ("one two three", ["two three"], "one [two three]"),
        ("one, two... three", ["two three"], "one, [two... three]"),
        ("twofold two", ["two"], "twofold [two]"),
        ("Crème brûlée", ["brulee"], "Crème [brûlée]"),
        ("re\u0301sume\u0301", ["resume"], "[re\u0301sume\u0301]"),
        ("Straße!", ["strasse"], "[Straße]!"),
        ("我住在北京市", ["北 京"], "我住在[北京]市"),
        ("a\n\n  b\tc", ["b"], "a [b] c"),
        (f"one {BREAK} two", ["two"], "one [two]"),
        ("nothing of it", ["absent"], "nothing of it"),
        ("", ["absent"], ""),
        ("x" * 70, ["x" * WORD_CHARS], f"[{'x' * 70}]"),
        ("two two one", ["two one", "two"], "[two] [two one]"),
        ("\x00 two \ud800", ["two"], "\x00 [two] \ud800"),
    ],
)
def test_matches_are_marked(text: str, words: list[str], snippet: str) -> None:
    assert shown(text, *words) == snippet


def test_a_prefix_match_marks_the_whole_word() -> None:
    assert shown("deployment of", "depl", prefix=True) == "[deployment] of"
    assert shown("the deployments", "the depl", prefix=True) == "[the deployments]"


def test_the_part_with_most_of_the_words_is_shown() -> None:
    far = "filler " * 100
    snippet = shown(f"alpha {far} alpha beta {far} beta", "alpha", "beta")
    assert "[alpha] [beta]" in snippet
    assert snippet.startswith("…")
    assert snippet.endswith("…")
    assert "[alpha]" in shown(f"{far}alpha", "alpha")
    assert shown(f"alpha {far}", "alpha").startswith("[alpha] filler")


def test_a_snippet_is_cut_between_words_but_never_grows() -> None:
    snippet = shown("word " * 200, "absent")
    assert snippet == ("word " * 32).strip() + "…"
    endless = shown("x" * 1_000 + " two " + "y" * 1_000, "two")
    assert "[two]" in endless
    assert len(endless) <= SNIPPET_CHARS + 10
    marked = "two " + ("e" + "\u0301" * 50) * 10
    cut = shown(marked, "absent").removesuffix("…")
    assert marked.startswith(cut)
    assert marked[len(cut)] == "e", "no combining mark is separated from its letter"


@given(st.text(st.sampled_from("ab Zé\u0301ß北🚀\n.\ud800\x01"), max_size=400), st.sampled_from("abzeß北🚀"))
def test_a_snippet_is_part_of_the_text_and_marks_the_matches(text: str, word: str) -> None:
    (expected,) = words_of(word)
    snippet = Marker([Term((expected,))], "\x02", "\x03").snippet(text)
    plain = snippet.replace("\x02", "").replace("\x03", "").strip("…").strip()
    assert "".join(plain.split()) in "".join(text.replace(BREAK, " ").split())
    assert len(snippet.replace("\x02", "").replace("\x03", "")) <= SNIPPET_CHARS + 60
    parts = snippet.split("\x02")[1:]
    for part in parts:
        marked, _, _ = part.partition("\x03")
        assert words_of(marked) == [expected]
    if expected in words_of(text):
        assert parts


@given(ANY_TEXT, ANY_TEXT)
def test_no_text_or_query_breaks_a_snippet(text: str, query: str) -> None:
    words = [word for word in words_of(query) if word != BREAK]
    if words:
        Marker([Term(tuple(words), True), Term((words[0],))], "<", ">").snippet(text)
