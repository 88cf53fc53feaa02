"""Declared resources: the custom resources of kagent, from files or from a Kubernetes cluster, as rows of Holdfast.

A manifest passes through four steps:

1. ``documents`` reads YAML and JSON; ``cluster`` reads the objects of a cluster, which ``mirror`` keeps up to date.
2. ``resources`` checks each against the fields of its kind (``schemas``), and keeps its secret values apart.
3. ``rows`` turns a resource into rows of agents, providers, models and MCP servers, with the values that it refers to
   (``values``).
4. ``acme.declared.apply`` brings the rows of a tenant to it.
"""

from .applying import apply
from .documents import read_documents
from .resources import Resource, read_resources
from .values import Reference, Values, local_values, values_of

__all__ = [
    "Reference",
    "Resource",
    "Values",
    "apply",
    "local_values",
    "read_documents",
    "read_resources",
    "values_of",
]
