"""What every backend must do, as a pytest class: shipped for backend authors.

    from holdfast.testing.conformance import BackendConformance


    class TestMine(BackendConformance):
        def open_backend(self, folder, *, tenant, readonly, clock):
            return MyBackend(folder / "store", tenant=tenant, readonly=readonly, clock=clock)

The tests use the public API, and the backend protocol only where the API cannot reach. Each has a
folder and a clock of its own; every backend opened on the same folder must be the same store. If
the store ends with its backend, set `persistent = False`: then it is never opened twice. If it
cannot search its own bytes for residue of erased data, set `proves = False`: then every erasure
must report that. Give the backend a long lease (minutes): the tests advance the clock when one has
to expire.

Tests that take seconds are marked `long`; register that mark, or skip them with `-m "not long"`.
"""

from holdfast.testing.conformance.append import Appending
from holdfast.testing.conformance.async_twins import Twins
from holdfast.testing.conformance.backend_protocol import Seam
from holdfast.testing.conformance.blobs import Blobs
from holdfast.testing.conformance.damage import DamagedData
from holdfast.testing.conformance.drafts import Drafts
from holdfast.testing.conformance.erase import Forgetting
from holdfast.testing.conformance.expected_head import Comparing
from holdfast.testing.conformance.fixtures import SetClock
from holdfast.testing.conformance.follow import FollowingOthers
from holdfast.testing.conformance.fork import Forking
from holdfast.testing.conformance.head_moves import Moving
from holdfast.testing.conformance.keys import Naming
from holdfast.testing.conformance.leases import Leases
from holdfast.testing.conformance.lineage import Lineage
from holdfast.testing.conformance.listing import ListingSessions
from holdfast.testing.conformance.positions import Places
from holdfast.testing.conformance.purge import Purging
from holdfast.testing.conformance.purge_forks import Erasing
from holdfast.testing.conformance.queue import Queueing
from holdfast.testing.conformance.reads import Reading
from holdfast.testing.conformance.recovery import Recovery
from holdfast.testing.conformance.refs import Refs
from holdfast.testing.conformance.replace import Replacing
from holdfast.testing.conformance.resolve import Finding
from holdfast.testing.conformance.retention import Retention
from holdfast.testing.conformance.retries import Retries
from holdfast.testing.conformance.search import Searching
from holdfast.testing.conformance.summaries import Summaries
from holdfast.testing.conformance.tenants import Tenants
from holdfast.testing.conformance.trash import Trash
from holdfast.testing.conformance.turns import Turns
from holdfast.testing.conformance.undo import Undoing
from holdfast.testing.conformance.update import Updating
from holdfast.testing.conformance.usage import UsageSums
from holdfast.testing.conformance.values import Values

__all__ = ["BackendConformance", "SetClock"]


class BackendConformance(
    Seam,
    Appending,
    Values,
    Blobs,
    Reading,
    Turns,
    Drafts,
    Leases,
    Recovery,
    Queueing,
    UsageSums,
    Updating,
    Naming,
    Finding,
    Refs,
    ListingSessions,
    Searching,
    Places,
    Moving,
    Undoing,
    Comparing,
    Replacing,
    Summaries,
    Forking,
    Lineage,
    Trash,
    Purging,
    Erasing,
    Forgetting,
    Retention,
    Retries,
    Tenants,
    FollowingOthers,
    DamagedData,
    Twins,
):
    """The whole promise of a store, for any backend."""
