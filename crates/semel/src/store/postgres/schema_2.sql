-- Additive: binaries of format 1 work with it.
CREATE INDEX record_in_progress ON {schema}.record (id) WHERE state IN (2, 3);
COMMENT ON INDEX {schema}.record_in_progress IS 'Keys in progress and in doubt, to list and count them without a scan of the table.';
