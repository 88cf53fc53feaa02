"""Agents, models and MCP servers are declared in a folder of manifests; the rows of a tenant follow it.

The manifests are in ``examples/declared``. The command line does the same: ``holdfast apply -f examples/declared``.
"""

import os
from pathlib import Path

from holdfast import Holdfast
from holdfast.declared import apply, local_values, read_documents, read_resources
from holdfast.encryption import new_key

MANIFESTS = Path(__file__).parent / "declared"


def show(title, changes):
    print(f"{title}:")
    for change in changes:
        print(f"  {change.action:9} {change.ref}")
        for field in change.fields:
            print(f"            {field.path}: {field.before!r} -> {field.after!r}")


os.environ.setdefault("OPENAI_API_KEY", "a key")
os.environ.setdefault("ORDERS_TOKEN", "Bearer a token")
with Holdfast("shop.db", encryption_key=new_key()) as hf:
    acme = hf.tenant("acme")
    resources = read_resources(read_documents(MANIFESTS, acme.limits))
    values = local_values(None, acme.limits)
    show("First", apply(acme, resources, values, source="shop"))
    show("Again", apply(acme, resources, values, source="shop"))

    packer = acme.agents.get("shop__NS__packer")
    print(f"packer: {packer.provider}, {packer.model}, tools {', '.join(packer.tool_ids)}")

    os.environ["OPENAI_API_KEY"] = "another key"
    without_support = [resource for resource in resources if resource.name != "support"]
    show("With another key, without support", apply(acme, without_support, values, source="shop", prune=True))
