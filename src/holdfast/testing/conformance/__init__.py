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

from holdfast.testing.conformance.amend_tests import AmendTests
from holdfast.testing.conformance.append_tests import AppendTests
from holdfast.testing.conformance.async_twins_tests import AsyncTwinTests
from holdfast.testing.conformance.backend_protocol_tests import BackendProtocolTests
from holdfast.testing.conformance.blobs_tests import BlobTests
from holdfast.testing.conformance.changes_tests import WholeChangeTests
from holdfast.testing.conformance.damage_tests import DamageTests
from holdfast.testing.conformance.drafts_tests import DraftTests
from holdfast.testing.conformance.drop_tests import DropTests, PurgeRecordTests
from holdfast.testing.conformance.erase_tests import EraseTests
from holdfast.testing.conformance.exact_moves_tests import ExactMoveTests
from holdfast.testing.conformance.expected_head_tests import ExpectedHeadTests
from holdfast.testing.conformance.fixtures import SetClock
from holdfast.testing.conformance.follow_tests import FollowTests
from holdfast.testing.conformance.fork_tests import ForkTests
from holdfast.testing.conformance.head_moves_tests import HeadMoveTests
from holdfast.testing.conformance.keys_tests import KeyTests
from holdfast.testing.conformance.leases_tests import LeaseTests
from holdfast.testing.conformance.lineage_tests import LineageTests
from holdfast.testing.conformance.listing_tests import ListingTests
from holdfast.testing.conformance.load_tests import LoadTests
from holdfast.testing.conformance.message_iteration_tests import MessageIterationTests
from holdfast.testing.conformance.message_reads_tests import MessageReadTests
from holdfast.testing.conformance.metadata_tests import MetadataTests
from holdfast.testing.conformance.positions_tests import PositionTests
from holdfast.testing.conformance.provider_messages_tests import ProviderMessageTests
from holdfast.testing.conformance.purge_forks_tests import PurgeForkTests
from holdfast.testing.conformance.purge_tests import PurgeTests
from holdfast.testing.conformance.queue_tests import QueueTests
from holdfast.testing.conformance.reads_tests import ReadTests
from holdfast.testing.conformance.record_follow_tests import RecordFollowTests
from holdfast.testing.conformance.record_history_tests import RecordHistoryTests
from holdfast.testing.conformance.records_tests import RecordTests
from holdfast.testing.conformance.recovery_tests import RecoveryTests
from holdfast.testing.conformance.refs_tests import RefTests
from holdfast.testing.conformance.replace_tests import ReplaceTests
from holdfast.testing.conformance.resolve_tests import ResolveTests
from holdfast.testing.conformance.retention_tests import RetentionTests
from holdfast.testing.conformance.retries_tests import RetryTests
from holdfast.testing.conformance.search_tests import SearchTests
from holdfast.testing.conformance.snapshot_tests import SnapshotTests
from holdfast.testing.conformance.store_records_tests import StoreRecordTests
from holdfast.testing.conformance.summaries_tests import SummaryTests
from holdfast.testing.conformance.tenants_tests import TenantTests
from holdfast.testing.conformance.trash_tests import TrashTests
from holdfast.testing.conformance.turns_tests import TurnTests
from holdfast.testing.conformance.undo_tests import UndoTests
from holdfast.testing.conformance.update_tests import UpdateTests
from holdfast.testing.conformance.usage_tests import UsageTests
from holdfast.testing.conformance.values_tests import ValueTests

__all__ = ["BackendConformance", "SetClock"]


class BackendConformance(
    BackendProtocolTests,
    AppendTests,
    ValueTests,
    BlobTests,
    ReadTests,
    MessageIterationTests,
    MessageReadTests,
    TurnTests,
    DraftTests,
    LeaseTests,
    RecoveryTests,
    QueueTests,
    UsageTests,
    UpdateTests,
    WholeChangeTests,
    KeyTests,
    ResolveTests,
    RefTests,
    ListingTests,
    MetadataTests,
    SearchTests,
    PositionTests,
    ProviderMessageTests,
    HeadMoveTests,
    ExactMoveTests,
    UndoTests,
    ExpectedHeadTests,
    ReplaceTests,
    AmendTests,
    SnapshotTests,
    SummaryTests,
    ForkTests,
    LineageTests,
    TrashTests,
    PurgeTests,
    PurgeForkTests,
    EraseTests,
    RetentionTests,
    RetryTests,
    LoadTests,
    TenantTests,
    FollowTests,
    RecordTests,
    RecordHistoryTests,
    RecordFollowTests,
    StoreRecordTests,
    DropTests,
    PurgeRecordTests,
    DamageTests,
    AsyncTwinTests,
):
    """The whole promise of a store, for any backend."""
