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
                  /request                     what people ask of its run (only after a request)
                  /standbys/<id>               ephemeral: runs that wait for the topology
                  /components                  the spout and its kind, components, the stores that each may begin
                  /ended                       how the newest run ended that could say so

The empty znode named after the generation tells incarnations apart. A znode that is made again
starts at version 0 again: after a reset, an old coordinator would take the new epoch for its own.
"""

from __future__ import annotations

import functools
import urllib.parse

from txtopo import errors


class Layout:
    """The paths of topology ``topology_id``."""

    def __init__(self, topology_id: str) -> None:
        if not topology_id:
            raise errors.ConfigError(
                "a topology id is empty\n  Give the topology an id: the state is kept under the id."
            )
        self.topology_id = topology_id
        self.top = "/" + encode_name(topology_id)
        self.generation = self.top + "/generation"
        self.epoch = self.top + "/epoch"
        self.lease = self.top + "/lease"
        self.current = self.top + "/current"
        self.txids = self.top + "/txids"
        self.positions = self.top + "/positions"
        self.stores = self.top + "/stores"
        self.request = self.top + "/request"
        self.standbys = self.top + "/standbys"
        self.components = self.top + "/components"
        self.ended = self.top + "/ended"

    def marker(self, generation: str) -> str:
        return f"{self.generation}/{encode_name(generation)}"


@functools.lru_cache(4096)
def encode_name(name: str) -> str:
    """``name`` as one path component: characters that would trouble ZooKeeper or people are
    percent-encoded."""
    quoted = urllib.parse.quote(name, safe="", errors="surrogatepass")
    return quoted.replace(".", "%2E") if set(quoted) == {"."} else quoted


def decode_name(component: str) -> str:
    """The name that :func:`encode_name` encoded."""
    return urllib.parse.unquote(component, errors="surrogatepass")
