-- Records: state behind messages. place = branch * 2^32 + number: numbers grow along a branch, and seq
-- with them, so the records of a history are one range of this table per branch, as its messages are.
-- A branch has those of its parent's records that lie behind fork_seq or before, up to number
-- fork_record. heads.records is the number of the newest record of the active branch.
-- crc = crc32(body, crc32(JSON array of number, seq, id, kind, key)).
ALTER TABLE heads ADD COLUMN records INTEGER;
ALTER TABLE branches ADD COLUMN fork_record INTEGER;

CREATE TABLE records (
  place INTEGER PRIMARY KEY,
  seq   INTEGER NOT NULL,
  id    ANY     NOT NULL,
  kind  ANY     NOT NULL,
  key   ANY,
  crc   INTEGER NOT NULL,
  body  ANY     NOT NULL
) STRICT;
CREATE INDEX records_by_id ON records (id);
CREATE INDEX records_by_key ON records (place >> 32, kind, key, seq);
CREATE TABLE record_blobs (
  place INTEGER NOT NULL,
  blob  INTEGER NOT NULL,
  PRIMARY KEY (place, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX record_blobs_by_blob ON record_blobs (blob);

-- Records of the store, beyond sessions: of a scope, or of all. One that was replaced keeps its row
-- without the body, so that a retry of its write is recognized.
CREATE TABLE store_records (
  n      INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant INTEGER NOT NULL,
  scope  ANY,
  kind   ANY NOT NULL,
  key    ANY,
  id     ANY NOT NULL,
  crc    INTEGER NOT NULL,
  body   ANY
) STRICT;
CREATE INDEX store_records_by_key ON store_records (tenant, kind, key, scope) WHERE body IS NOT NULL;
CREATE INDEX store_records_by_id ON store_records (tenant, id);
CREATE TABLE store_record_blobs (
  record INTEGER NOT NULL,
  blob   INTEGER NOT NULL,
  PRIMARY KEY (record, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX store_record_blobs_by_blob ON store_record_blobs (blob);
