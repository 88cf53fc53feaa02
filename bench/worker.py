"""The process of one case: run a job, given as JSON, and print its result as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys

from .case import Job

FAMILIES = {
    "append-sqlite": "append_sqlite",
    "append-new": "append_sqlite",
    "slow-flush": "append_sqlite",
    "append-postgres": "append_postgres",
    "tenants-sqlite": "tenants",
    "tenants-postgres": "tenants",
    "history": "history",
    "growth-sqlite": "growth",
    "growth-postgres": "growth",
    "conversation": "conversation",
    "search-sqlite": "search",
    "search-postgres": "search",
    "steps-sqlite": "steps",
    "steps-postgres": "steps",
    "step-cost": "steps",
    "langgraph": "graphs",
    "workspace": "workspace",
    "retention": "retention",
    "agents-sqlite": "agents",
    "agents-postgres": "agents",
    "workspace-many": "workspace",
    "server": "server",
    "kagent": "kagent",
    "import": "importing",
}
MARK = "RESULT "


def main() -> None:
    """Run the job on the command line."""
    job = Job(**json.loads(sys.argv[1]))
    family = importlib.import_module(f".{FAMILIES[job.group]}", __package__)
    try:
        result = family.run(job)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(MARK + json.dumps(result), flush=True)
    # Some contenders leave threads running that would keep the process alive.
    os._exit(0)


if __name__ == "__main__":
    main()
