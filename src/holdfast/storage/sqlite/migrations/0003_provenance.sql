-- Where a session was imported from; whether queued input is held, so that no turn takes it.
ALTER TABLE sessions ADD COLUMN provenance ANY;
ALTER TABLE queue ADD COLUMN held INTEGER;
