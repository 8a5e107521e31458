"""What every backend must do, as a pytest class: shipped for backend authors.

    from holdfast.testing.conformance import BackendConformance


    class TestMine(BackendConformance):
        def open_backend(self, folder, *, tenant, readonly, clock):
            return MyBackend(folder / "store", tenant=tenant, readonly=readonly, clock=clock)

The tests use the public API, and the backend protocol only where the API cannot reach. Each has a
folder and a clock of its own; every backend opened on the same folder must be the same store. If
the store ends with its backend, set `persistent = False`: then it is never opened twice. If it
cannot search its own bytes for residue of erased data, set `proves = False`: then every erasure
must report that. Use a long lease (minutes): the tests advance the clock when one has
to expire.

Tests that take seconds are marked `long`; register that mark, or skip them with `-m "not long"`.
"""

from holdfast.testing.conformance.append import AppendTests
from holdfast.testing.conformance.async_twins import AsyncTwinTests
from holdfast.testing.conformance.backend_protocol import BackendProtocolTests
from holdfast.testing.conformance.blobs import BlobTests
from holdfast.testing.conformance.damage import DamageTests
from holdfast.testing.conformance.drafts import DraftTests
from holdfast.testing.conformance.erase import EraseTests
from holdfast.testing.conformance.expected_head import ExpectedHeadTests
from holdfast.testing.conformance.fixtures import SetClock
from holdfast.testing.conformance.follow import FollowTests
from holdfast.testing.conformance.fork import ForkTests
from holdfast.testing.conformance.head_moves import HeadMoveTests
from holdfast.testing.conformance.keys import KeyTests
from holdfast.testing.conformance.leases import LeaseTests
from holdfast.testing.conformance.lineage import LineageTests
from holdfast.testing.conformance.listing import ListingTests
from holdfast.testing.conformance.positions import PositionTests
from holdfast.testing.conformance.purge import PurgeTests
from holdfast.testing.conformance.purge_forks import PurgeForkTests
from holdfast.testing.conformance.queue import QueueTests
from holdfast.testing.conformance.reads import ReadTests
from holdfast.testing.conformance.recovery import RecoveryTests
from holdfast.testing.conformance.refs import RefTests
from holdfast.testing.conformance.replace import ReplaceTests
from holdfast.testing.conformance.resolve import ResolveTests
from holdfast.testing.conformance.retention import RetentionTests
from holdfast.testing.conformance.retries import RetryTests
from holdfast.testing.conformance.search import SearchTests
from holdfast.testing.conformance.summaries import SummaryTests
from holdfast.testing.conformance.tenants import TenantTests
from holdfast.testing.conformance.trash import TrashTests
from holdfast.testing.conformance.turns import TurnTests
from holdfast.testing.conformance.undo import UndoTests
from holdfast.testing.conformance.update import UpdateTests
from holdfast.testing.conformance.usage import UsageTests
from holdfast.testing.conformance.values import ValueTests

__all__ = ["BackendConformance", "SetClock"]


class BackendConformance(
    BackendProtocolTests,
    AppendTests,
    ValueTests,
    BlobTests,
    ReadTests,
    TurnTests,
    DraftTests,
    LeaseTests,
    RecoveryTests,
    QueueTests,
    UsageTests,
    UpdateTests,
    KeyTests,
    ResolveTests,
    RefTests,
    ListingTests,
    SearchTests,
    PositionTests,
    HeadMoveTests,
    UndoTests,
    ExpectedHeadTests,
    ReplaceTests,
    SummaryTests,
    ForkTests,
    LineageTests,
    TrashTests,
    PurgeTests,
    PurgeForkTests,
    EraseTests,
    RetentionTests,
    RetryTests,
    TenantTests,
    FollowTests,
    DamageTests,
    AsyncTwinTests,
):
    """The whole promise of a store, for any backend."""
