-- Binds a store and its write-ahead log: the row 'log' names the log that the store was last written
-- through. docs/format.md documents its bytes (`wal.Binding`). Until there is a log it is a random
-- name, so that no two stores have the same one.
WITH first(binding) AS MATERIALIZED (SELECT randomblob(8) || zeroblob(9))
INSERT INTO meta SELECT 'log', CAST('HoldfLog' || binding || binding AS BLOB) FROM first;
