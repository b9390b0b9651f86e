-- name: database_clock$
-- The database's clock at this statement, not at the start of a transaction.
SELECT clock_timestamp();
