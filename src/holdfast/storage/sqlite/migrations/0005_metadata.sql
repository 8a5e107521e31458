-- The pairs of the metadata of sessions, each by its mark: the first 8 bytes of the hash of its name
-- and value. They are derived from `sessions`, so a migration fills the table, and salvage too.
CREATE TABLE metadata_marks (
  session INTEGER NOT NULL,
  mark    INTEGER NOT NULL,
  tenant  INTEGER NOT NULL,
  PRIMARY KEY (session, mark)
) STRICT, WITHOUT ROWID;
CREATE INDEX metadata_by_mark ON metadata_marks (tenant, mark);
