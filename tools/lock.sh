#!/bin/sh
# Regenerate requirements/*.txt. Pinned, hashed, for every platform and Python 3.11 to 3.14; no index and no path in them.
set -eu
cd "$(dirname "$0")/.."

lock() {
    output=requirements/$1.txt
    shift
    "$BIN/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file "$output" "$@" >/dev/null
    echo "$output: $(grep -c == "$output") packages"
}

lock installer requirements/installer.in "$@"
lock build requirements/build.in "$@"
# What the image is made of: everything that an option of the server needs.
lock run pyproject.toml --extra server --extra postgres --extra packs --extra erasure --extra encryption "$@"
# The same versions everywhere: the tested and measured versions are those that run.
lock test pyproject.toml requirements/test.in --extra all --constraint requirements/run.txt "$@"
lock bench pyproject.toml requirements/bench.in --extra all --constraint requirements/run.txt "$@"
lock bench-adk requirements/bench-adk.in "$@"
lock bench-dbos requirements/bench-dbos.in "$@"
# A framework that wants older versions of what we use gets them: no constraint.
lock langgraph pyproject.toml requirements/langgraph.in --extra server --extra postgres "$@"
# The oldest releases that an extra allows, where they differ from the newest: <name>-oldest.
lock langgraph-oldest pyproject.toml requirements/langgraph-oldest.in --extra langgraph --extra server --extra postgres "$@"
lock crewai pyproject.toml requirements/crewai.in --extra postgres "$@"
lock crewai-oldest pyproject.toml requirements/crewai-oldest.in --extra postgres "$@"
lock kagent pyproject.toml requirements/kagent.in --extra server --extra postgres "$@"
lock a2a pyproject.toml requirements/a2a.in --extra server --extra postgres "$@"
lock a2a-oldest pyproject.toml requirements/a2a-oldest.in --extra server --extra postgres "$@"
