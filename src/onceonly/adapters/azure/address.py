"""The URLs of places in Azure storage. No driver is needed to read them."""

import os
import re
from base64 import b64decode
from collections.abc import Mapping
from urllib.parse import unquote

from onceonly.model.errors import SetupError
from onceonly.systems import KeySpace
from onceonly.systems.urls import Hiding, is_plain_http, read_options, server_of, split_parts

VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"
_ENDPOINT = {"table": "TableEndpoint", "blob": "BlobEndpoint", "queue": "QueueEndpoint"}
_PATH = {"table": "table", "blob": "container/prefix", "queue": "prefix"}
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


class AzureAddress(Hiding, frozen=True, kw_only=True):
    """One place in a storage account as a URL names it: the parts of its path, and the service's endpoint.

    `key` is an account key in Base64, `token` a shared access signature. Without both, azure-identity finds a credential.
    """

    account: str
    parts: tuple[str, ...]
    endpoint: str
    key: str = ""
    token: str = ""


def read_table(url: str) -> AzureAddress:
    """Read `azure-table://account/table?endpoint=`. Raises SetupError, which never repeats a key."""
    return read_address(url, "table")


def read_blob(url: str) -> AzureAddress:
    """Read `azure-blob://account/container/prefix?endpoint=`. Raises SetupError, which never repeats a key."""
    return read_address(url, "blob")


def blob_keys(url: str) -> KeySpace:
    """Return the names below the folder of a URL, in a container of an account. Raises SetupError."""
    address = read_blob(url)
    container, *folders = address.parts
    folder = "".join(f"{part}/" for part in folders)
    return KeySpace(f"{server_of(address.endpoint)}/{address.account}/{container}", folder)


def read_address(url: str, service: str) -> AzureAddress:
    """Read `azure-SERVICE://account/parts?endpoint=`; `service` is table, blob or queue, which needs no parts.

    The key is the URL's password, or that of AZURE_STORAGE_CONNECTION_STRING when it is about this account. Raises SetupError,
    which never repeats a key.
    """
    form = f"azure-{service}://account/{_PATH[service]}"
    parts = split_parts(url, f"Azure {service}", form)
    account, path = parts.hostname or "", tuple(unquote(part) for part in parts.path.split("/") if part)
    if not _ACCOUNT.fullmatch(account) or not (path or service == "queue"):
        raise SetupError(f"not a valid URL of Azure storage: use {form}")
    options = read_options(parts.query, f"Azure {service}", ["endpoint"])
    settings = _connection_string(account, os.environ.get(VARIABLE, ""))
    endpoint = options.get("endpoint") or settings.get(_ENDPOINT[service]) or _usual_endpoint(account, service, settings)
    if not is_plain_http(endpoint):
        raise SetupError(
            "the endpoint of Azure storage must begin with https://, or http:// for an emulator, and have no user and no "
            "options: correct the option endpoint="
        )
    key = unquote(parts.password or "") or settings.get("AccountKey", "")
    if not _is_base64(key):
        raise SetupError(f"the key of the Azure account {account} is not Base64: copy it as Azure shows it")
    token = "" if key else settings.get("SharedAccessSignature", "")
    return AzureAddress(account=account, parts=path, endpoint=endpoint, key=key, token=token)


def _is_base64(key: str) -> bool:
    try:
        b64decode(key, validate=True)
    except ValueError:
        return False
    return True


def _connection_string(account: str, text: str) -> Mapping[str, str]:
    pairs = (part.partition("=") for part in text.split(";") if part)
    settings = {name.strip(): value.strip() for name, _, value in pairs}
    return settings if settings.get("AccountName") == account else {}


def _usual_endpoint(account: str, service: str, settings: Mapping[str, str]) -> str:
    return f"https://{account}.{service}.{settings.get('EndpointSuffix', 'core.windows.net')}"
