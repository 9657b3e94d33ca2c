"""Names the paths of a topology's znodes, within the store.

::

    /<topology id>/generation                  which incarnation this is
                  /generation/<generation>     empty; every multi checks that it is there
                  /epoch                       the fence
                  /lease                       ephemeral: who is alive
                  /current                     the next txid to commit, and who wrote it last
                  /txids/<ten digits>          one record per open txid, and that of the last committed one
                  /positions/<shard>           metadata by partition, as of current - 1
                  /stores                      stores that hold results
                  /components                  the spout and its kind, components, the stores that each may begin

The empty znode named after the generation tells incarnations apart. A znode that is made again
starts at version 0 again: after a reset, an old coordinator would take the new epoch for its own.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from txtopo import errors


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of topology ``topology_id``."""

    topology_id: str

    def __post_init__(self) -> None:
        if not self.topology_id:
            raise errors.ConfigError(
                "a topology id is empty\n  Give the topology an id: the state is kept under the id."
            )

    @property
    def top(self) -> str:
        return "/" + encode_name(self.topology_id)

    @property
    def generation(self) -> str:
        return self.top + "/generation"

    def marker(self, generation: str) -> str:
        return f"{self.generation}/{encode_name(generation)}"

    @property
    def epoch(self) -> str:
        return self.top + "/epoch"

    @property
    def lease(self) -> str:
        return self.top + "/lease"

    @property
    def current(self) -> str:
        return self.top + "/current"

    @property
    def txids(self) -> str:
        return self.top + "/txids"

    @property
    def positions(self) -> str:
        return self.top + "/positions"

    @property
    def stores(self) -> str:
        return self.top + "/stores"

    @property
    def components(self) -> str:
        return self.top + "/components"


def encode_name(name: str) -> str:
    """``name`` as one path component: characters that would trouble ZooKeeper or people are
    percent-encoded."""
    quoted = urllib.parse.quote(name, safe="", errors="surrogatepass")
    return quoted.replace(".", "%2E") if set(quoted) == {"."} else quoted


def decode_name(component: str) -> str:
    """The name that :func:`encode_name` encoded."""
    return urllib.parse.unquote(component, errors="surrogatepass")
