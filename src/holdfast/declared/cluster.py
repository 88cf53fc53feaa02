"""Access to a Kubernetes cluster through its official client: lists, watches, Secrets and ConfigMaps."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.errors import Forbidden, NotFound, Unavailable
from holdfast.extras import needs

from .mirror import Expired, ObjectList
from .schemas import GROUP, KINDS

with needs("kubernetes"):
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

PAGE_OBJECTS = 500
"""Objects in one page of a list."""
CONNECT_S, READ_S = 10.0, 60.0
"""Seconds to connect, and to wait for an answer."""
WATCH_S = 300
"""Seconds after which the cluster ends a watch, so that a broken connection is noticed."""


class Cluster:
    """The resources of kagent in one cluster.

    Args:
        kubeconfig: the file with the address of the cluster and the credentials; by default that of kubectl. In a pod without
            such a file, those of the pod's service account.
        context: a context of that file; by default the current one.

    Raises:
        MissingExtra: the Kubernetes client is not installed.
        NotFound: there is neither such a file nor a service account.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        settings = _settings(kubeconfig, context)
        settings.retries = False
        self._client = client.ApiClient(settings)
        self._custom = client.CustomObjectsApi(self._client)
        self._core = client.CoreV1Api(self._client)
        self.address: str = settings.host
        """The address of the cluster."""

    def versions(self) -> dict[str, str]:
        """Return the kinds that the cluster has, each with the newest version that both sides know."""
        served: dict[str, set[str]] = {}
        for version in {version for kind in KINDS.values() for version in kind.versions}:
            with _translated(f"the kinds of {GROUP}/{version}"):
                try:
                    kinds = self._read(self._custom.get_api_resources, GROUP, version)
                except ApiException as error:
                    if error.status != 404:
                        raise
                    continue
                served[version] = {item["name"] for item in kinds.get("resources", [])}
        newest = {
            kind.name: next((version for version in kind.versions if kind.plural in served.get(version, ())), None)
            for kind in KINDS.values()
        }
        return {kind: version for kind, version in newest.items() if version is not None}

    def objects(self, kind: str, version: str, namespace: str | None) -> ObjectList:
        """Return all objects of a kind, in one namespace or in all.

        Raises:
            Expired: the objects changed too much while they were listed; begin again.
        """
        objects: list[Mapping[str, Any]] = []
        options: dict[str, Any] = {"limit": PAGE_OBJECTS}
        while True:
            with _translated(f"{kind} in {namespace or 'all namespaces'}"):
                page = self._read(*self._call(kind, version, namespace), **options)
            objects += page.get("items", [])
            options["_continue"] = page["metadata"].get("continue")
            if not options["_continue"]:
                return ObjectList(page["metadata"]["resourceVersion"], objects)

    def watch(self, kind: str, version: str, namespace: str | None, since: str) -> Iterator[Mapping[str, Any]]:
        """Yield the events of a kind after a resource version, until the cluster ends the watch.

        Raises:
            Expired: the cluster no longer knows the resource version.
            Unavailable: the connection broke.
        """
        method, *names = self._call(kind, version, namespace)
        with _translated(f"{kind} in {namespace or 'all namespaces'}"):
            response = method(
                *names,
                watch=True,
                resource_version=since,
                allow_watch_bookmarks=True,
                timeout_seconds=WATCH_S,
                _preload_content=False,
                _request_timeout=(CONNECT_S, WATCH_S + READ_S),
            )
            try:
                if response.status == 410:
                    raise Expired
                yield from _lines(response)
            finally:
                response.close()

    def keys(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return the keys of a Secret or a ConfigMap; ``None`` if it does not exist."""
        method = self._core.read_namespaced_secret if kind == "Secret" else self._core.read_namespaced_config_map
        with _translated(f"{kind} {namespace}/{name}"):
            try:
                item = self._read(method, name, namespace)
            except ApiException as error:
                if error.status == 404:
                    return None
                raise
            data = item.get("data") or {}
            if kind == "Secret":
                return {key: b64decode(value).decode() for key, value in data.items()}
            return dict(data)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _call(self, kind: str, version: str, namespace: str | None) -> list[Any]:
        """Return the method of the client for a kind, with its arguments."""
        plural = KINDS[kind].plural
        if namespace is None:
            return [self._custom.list_cluster_custom_object, GROUP, version, plural]
        return [self._custom.list_namespaced_custom_object, GROUP, version, namespace, plural]

    def _read(self, method: Any, *names: str, **options: Any) -> Any:
        """Call a method and decode its answer; the client's own types are different in each of its releases."""
        response = method(*names, **options, _preload_content=False, _request_timeout=(CONNECT_S, READ_S))
        data = response.data if response.data is not None else response.read()
        if response.status >= 400:
            raise ApiException(status=response.status, reason=response.reason)
        return json.loads(data)


def _settings(kubeconfig: str | None, context: str | None) -> Any:
    settings = client.Configuration()
    try:
        config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=settings)
        return settings
    except (config.ConfigException, OSError) as error:
        problem = NotFound(f"no Kubernetes cluster is configured: {error}", noun="cluster", key=kubeconfig or "")
    if kubeconfig is not None or context is not None:
        raise problem
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        raise problem from None
    return settings


def _lines(response: Any) -> Iterator[Mapping[str, Any]]:
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)


@contextmanager
def _translated(subject: str) -> Iterator[None]:
    """Translate the errors of the client; their messages can contain headers and bodies."""
    try:
        yield
    except ApiException as error:
        if error.status == 410:
            raise Expired from None
        if error.status in (401, 403):
            message = f"the cluster does not allow reading {subject}: grant get, list and watch to the account"
            raise Forbidden(message, reason="cluster") from None
        if error.status == 404:
            raise NotFound(f"the cluster has no {subject}", noun="resource", key=subject) from None
        raise Unavailable(f"the cluster answered {error.status} for {subject}") from None
    except (HTTPError, OSError, ValueError, KeyError) as error:
        raise Unavailable(f"reading {subject} from the cluster failed: {type(error).__name__}") from None
