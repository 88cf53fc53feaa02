#!/bin/sh
# Regenerate requirements/*.txt. They are pinned and hashed for every platform and Python 3.11 to 3.14, and contain no index URL and no path.
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
# The image: every package that an option of the server needs.
lock run pyproject.toml --extra server --extra postgres --extra packs --extra erasure --extra encryption "$@"
# Constrained by run.txt, so that tests and benchmarks use the versions of the image.
lock test pyproject.toml requirements/test.in --extra all --constraint requirements/run.txt "$@"
lock bench pyproject.toml requirements/bench.in --extra all --constraint requirements/run.txt "$@"
lock bench-adk requirements/bench-adk.in "$@"
lock bench-dbos requirements/bench-dbos.in "$@"
# Not constrained, because a framework may need older versions.
lock langgraph pyproject.toml requirements/langgraph.in --extra server --extra postgres "$@"
# <name>-oldest: the oldest releases that an extra allows, if they differ from the newest.
lock langgraph-oldest pyproject.toml requirements/langgraph-oldest.in --extra langgraph --extra server --extra postgres "$@"
lock crewai pyproject.toml requirements/crewai.in --extra postgres "$@"
lock crewai-oldest pyproject.toml requirements/crewai-oldest.in --extra postgres "$@"
lock kagent pyproject.toml requirements/kagent.in --extra server --extra postgres "$@"
lock a2a pyproject.toml requirements/a2a.in --extra server --extra postgres "$@"
lock a2a-oldest pyproject.toml requirements/a2a-oldest.in --extra server --extra postgres "$@"
lock kubernetes pyproject.toml requirements/kubernetes.in --extra server --extra postgres --extra encryption --extra kubernetes "$@"
lock kubernetes-oldest pyproject.toml requirements/kubernetes-oldest.in --extra server --extra postgres --extra encryption --extra kubernetes "$@"
