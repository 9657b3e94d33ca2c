"""Objects in S3, Google or Azure storage, and in what speaks like them, through obstore.

``put`` is the conditional put. Its answer may be lost, and the request sent again: so a caller reads
what is there. An object is renamed by a copy, which is not cheap.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from txtopo import errors
from txtopo.connectors.files.storage import Entry, Ranges, Storage, Upload
from txtopo.stores import place as places

PART_BYTES = 8 << 20
"""How many bytes one request of a large upload or reader has."""
PARTS_AT_ONCE = 4
_TIMEOUT, _RETRIES = "60s", 4

_PASSING = "RequestTimeout|IncompleteBody|BadDigest|Mismatch|Throttl|InvalidBlo|InvalidPart|IDPComm"
"""Parts of the error codes under 400 that tell a fault on the way, or a rival's upload."""
_REFUSED = re.compile(rf"(?s)status code: (?:401|403|400(?!.*(?:{_PASSING})))")
"""obstore has a class for few refusals: none for a listing that is refused, and none for 400."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")

_SECRETS = (
    "secret_access_key",
    "session_token",
    "account_key",
    "sas_key",
    "client_secret",
    "service_account_key",
)
"""obstore's secret settings. Users give them by ``<setting>_env`` or ``<setting>_file`` only, or let
obstore take them from the environment."""
_NAMES = """
endpoint region access_key_id virtual_hosted_style_request skip_signature role_arn
role_session_name web_identity_token_file server_side_encryption sse_kms_key_id
sse_bucket_key_enabled request_payer account_name client_id tenant_id federated_token_file
use_azure_cli use_emulator service_account application_credentials base_url
"""
_HARMLESS = frozenset(_NAMES.split())
"""obstore's settings that are not secret, and on which no promise rests."""


def open_storage(root: str, client: Mapping[str, Any]) -> ObjectStorage:
    """The objects below ``root``, an address with bucket and folder."""
    library, settings = importlib.import_module("obstore.store"), config(root, client)
    try:
        store = library.from_url(
            root,
            config=settings,
            client_options={"allow_http": is_plain(settings), "timeout": _TIMEOUT},
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": datetime.timedelta(seconds=60),
            },
        )
    except (importlib.import_module("obstore.exceptions").BaseError, ValueError) as error:
        raise errors.SetupError(
            f"{root} is no address of a folder, or its settings are not whole: {first_line(error)}\n  Mend the address, or client."
        ) from error
    return ObjectStorage(root, store)


def check_client(client: Mapping[str, Any]) -> None:
    """Refuse settings that are secret or unknown.

    :raises errors.ConfigError: there is one.
    """
    for name, value in client.items():
        base, _, source = name.rpartition("_")
        if name in _SECRETS:
            raise errors.ConfigError(
                f"client[{name!r}] would be a secret in the topology, which is pickled and shown\n"
                f"  Give client['{name}_env'], the name of an environment variable, or client['{name}_file'], the path of a file."
            )
        if name not in _HARMLESS and not (base in _SECRETS and source in ("env", "file")):
            raise errors.ConfigError(
                f"client[{name!r}] is no setting that may be given\n  There are {', '.join(sorted(_HARMLESS))}."
            )
        if "://" in str(value) and ("@" in str(value) or "?" in str(value)):
            raise errors.ConfigError(
                f"client[{name!r}] holds a password, or may hold one\n  Give the secret by its own setting."
            )


def config(root: str, client: Mapping[str, Any]) -> dict[str, str]:
    """The library's settings for ``root``, with the secrets that ``client`` names."""
    settings = {name: str(value) for name, value in client.items() if name in _HARMLESS}
    for secret in _SECRETS:
        variable, file = client.get(f"{secret}_env"), client.get(f"{secret}_file")
        if variable is not None or file is not None:
            settings[secret] = places.password_from(f"the sink at {root}", variable, file) or ""
    return settings


def is_plain(settings: Mapping[str, str]) -> bool:
    """Whether the endpoint in ``settings`` is reached without TLS."""
    return (settings.get("endpoint") or settings.get("base_url") or "").startswith("http://")


class ObjectStorage(Storage):
    """Objects below ``root``, in ``store``."""

    renames = False

    def __init__(self, root: str, store: Any) -> None:
        super().__init__(root)
        self._store, self._api = store, importlib.import_module("obstore")
        self._errors = importlib.import_module("obstore.exceptions")

    def create(self, path: str) -> IO[bytes]:
        return Upload(functools.partial(self._send, path))

    def _send(self, path: str, file: Any) -> None:
        with self._explained(path):
            self._api.put(
                self._store, path, file, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def put(self, path: str, data: bytes) -> bool:
        with self._explained(path):
            try:
                self._api.put(self._store, path, data, mode="create")
            except self._errors.AlreadyExistsError:
                return False
            return True

    def rename(self, source: str, target: str) -> bool:
        data = self.read(source)
        if data is None:
            return False
        # The answer to an earlier put may have been lost.
        if not self.put(target, data) and self.read(target) != data:
            return False
        self.delete([source])
        return True

    def open(self, path: str) -> IO[bytes]:
        entry = self.stat(path)
        if entry is None:
            raise FileNotFoundError(path)
        return io.BufferedReader(Ranges(self, path, entry.bytes), PART_BYTES)

    def read(self, path: str) -> bytes | None:
        try:
            with self._explained(path):
                return bytes(self._api.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def read_range(self, path: str, start: int, end: int) -> bytes:
        with self._explained(path):
            return bytes(self._api.get_range(self._store, path, start=start, end=end))

    def entries(self, directory: str, after: str = "") -> Iterator[Entry]:
        # One request gives a thousand names.
        offset = f"{directory}/{after}" if after else None
        for entry in self._list(directory, offset):
            # Not every server like Azure's takes an offset.
            if offset is None or entry.path > offset:
                yield entry

    def walk(self) -> Iterator[Entry]:
        yield from self._list(None, None)

    def _list(self, prefix: str | None, offset: str | None) -> Iterator[Entry]:
        with self._explained(prefix or ""):
            for chunk in self._api.list(self._store, prefix, offset=offset, chunk_size=1000):
                for meta in chunk:
                    yield Entry(meta["path"], meta["size"], meta["last_modified"].timestamp())

    def delete(self, paths: Iterable[str]) -> None:
        names = list(paths)
        with self._explained(names[0] if names else ""), contextlib.suppress(FileNotFoundError):
            self._api.delete(self._store, names)

    def stat(self, path: str) -> Entry | None:
        try:
            with self._explained(path):
                meta = self._api.head(self._store, path)
        except FileNotFoundError:
            return None
        return Entry(path, meta["size"], meta["last_modified"].timestamp())

    def check(self, path: str) -> None:
        if self.put(path, b"") and self.put(path, b""):
            raise errors.SetupError(
                f"{self.root} takes no conditional puts, on which every transaction rests\n"
                "  Use a server that knows If-None-Match."
            )

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        place = f"{self.root}/{path}"
        try:
            yield
        except self._errors.AlreadyExistsError:
            raise
        except (self._errors.NotSupportedError, self._errors.InvalidPathError) as error:
            raise errors.SetupError(f"{place}: {first_line(error)}") from error
        except (FileNotFoundError, self._errors.BaseError) as error:
            said = str(error)
            if any(word in said for word in _NO_BUCKET):
                raise errors.SetupError(
                    f"there is no bucket for {place}\n  Make it first."
                ) from error
            if isinstance(error, FileNotFoundError):
                raise
            is_denied = isinstance(
                error, self._errors.PermissionDeniedError | self._errors.UnauthenticatedError
            )
            if is_denied or _REFUSED.search(said):
                raise errors.SetupError(
                    f"the server refused access to {place}: {first_line(error)}\n"
                    "  Check the keys and the other settings in client. This user needs read and list for the folder, to write also write and delete."
                ) from error
            raise errors.FailedException(
                f"{place} cannot be reached just now: {first_line(error)}"
            ) from error


def first_line(error: BaseException) -> str:
    """How the text of ``error`` begins, for a message."""
    return str(error).strip().splitlines()[0][:300]
