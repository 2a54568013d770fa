"""The tenants' file: names, limits and hashes of keys. A key itself is shown once, when it is made, and kept nowhere.

Keys are 256 random bits, so a plain SHA-256 of one gives nothing away. Never logs or returns a key or its hash.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from headrace.contract.errors import ConfigError
from headrace.contract.files import read_small, try_lock

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
HASH = re.compile(r"[0-9a-f]{64}")


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of None are none. ``weight``: share of the engine against other tenants. ``admin`` may see all tenants.
    ``share_cache``: its prompts may be found in the cache of others who share."""

    name: str
    key_sha256: str
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    weight: float = 1.0
    admin: bool = False
    share_cache: bool = False

    def check(self) -> None:
        """Raises ConfigError naming the field."""
        if not NAME.fullmatch(self.name):
            raise ConfigError("tenants", f"{self.name!r} is no name: letters, digits, dot, dash; at most 64")
        if not HASH.fullmatch(self.key_sha256):
            raise ConfigError("tenants", f"{self.name}: key_sha256 must be 64 hexadecimal digits")
        for field in ("requests_per_min", "tokens_per_min"):
            value = getattr(self, field)
            if value is not None and not 1 <= value <= 10**12:
                raise ConfigError("tenants", f"{self.name}: {field} must be at least 1")
        if not 0.001 <= self.weight <= 1000:
            raise ConfigError("tenants", f"{self.name}: weight must lie between 0.001 and 1000")


class TenantsFile(msgspec.Struct, forbid_unknown_fields=True):
    tenants: list[Tenant] = []


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def new_key() -> str:
    return f"hr-{secrets.token_urlsafe(32)}"


@contextmanager
def changing(path: Path, timeout_s: float = 10.0) -> Iterator[None]:
    """Inside, nobody else changes the file: who reads it, adds a tenant and writes it loses no other's key.

    Raises ConfigError when another one takes too long. The lock is the folder's, so no file of it stays behind.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + timeout_s
        while not try_lock(folder):
            if time.monotonic() > deadline:
                raise ConfigError("tenants", f"{path}: another program is changing it")
            time.sleep(0.01)
        yield
    finally:
        os.close(folder)  # and with it the lock


class Registry:
    """All tenants, by key or by name."""

    def __init__(self, tenants: list[Tenant]) -> None:
        for tenant in tenants:
            tenant.check()
        for field in ("name", "key_sha256"):
            values = [getattr(tenant, field) for tenant in tenants]
            if len(set(values)) < len(values):
                raise ConfigError("tenants", f"two tenants have the same {field}")
        self.tenants = tuple(tenants)

    @classmethod
    def load(cls, path: Path) -> Registry:
        """Raises ConfigError naming the file or the tenant."""
        try:
            return cls(msgspec.json.decode(read_small(path), type=TenantsFile).tenants)
        except OSError as error:
            hint = f"; `headrace tenants add NAME --file {path}` makes it" if not path.exists() else ""
            raise ConfigError("tenants", f"{path}: {error.strerror or error}{hint}") from error
        except msgspec.DecodeError as error:
            raise ConfigError("tenants", f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Whole or not at all; readable by its owner only."""
        text = msgspec.json.format(msgspec.json.encode(TenantsFile(list(self.tenants))), indent=2)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def find(self, key: str) -> Tenant | None:
        """Whose key it is. Takes the same time whichever it is: every hash is compared, each in constant time."""
        given, found = hash_key(key), None
        for tenant in self.tenants:
            if hmac.compare_digest(given, tenant.key_sha256):
                found = tenant
        return found

    def with_new(self, tenant: Tenant) -> Registry:
        if any(known.name == tenant.name for known in self.tenants):
            raise ConfigError("tenants", f"{tenant.name} is there already")
        return Registry([*self.tenants, tenant])

    def without(self, name: str) -> Registry:
        """Raises ConfigError when there is no such tenant."""
        rest = [tenant for tenant in self.tenants if tenant.name != name]
        if len(rest) == len(self.tenants):
            names = ", ".join(tenant.name for tenant in self.tenants)
            raise ConfigError("tenants", f"there is no {name}; there are: {names or 'none'}")
        return Registry(rest)

    def with_key(self, name: str, key: str) -> Registry:
        """The tenant has this key instead of its old one. Raises ConfigError when there is no such tenant."""
        return self.changed(name, key_sha256=hash_key(key))

    def changed(self, name: str, **fields: Any) -> Registry:
        """The tenant with other fields. Raises ConfigError when there is no such tenant, or it may not have them."""
        self.without(name)
        return Registry(
            [msgspec.structs.replace(tenant, **fields) if tenant.name == name else tenant for tenant in self.tenants]
        )
