-- Targets that a person paused: no delivery to them is taken.
CREATE TABLE ledger_pause (
    target TEXT NOT NULL PRIMARY KEY,
    paused_at INTEGER NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Lists: each filter finds its rows in their order.
CREATE INDEX ledger_event_run ON ledger_event (number) WHERE kind = 'run';
CREATE INDEX ledger_delivery_target ON ledger_delivery (target, number);
CREATE INDEX ledger_dead_letter_target ON ledger_dead_letter (target, status, number);
CREATE INDEX ledger_dead_letter_tenant ON ledger_dead_letter (tenant, status, number);
CREATE INDEX ledger_dead_letter_group ON ledger_dead_letter (signature, status, number);

-- Groups of dead letters are counted in these two, without reading the rows.
DROP INDEX ledger_letters_status;
CREATE INDEX ledger_dead_letter_status ON ledger_dead_letter (status, number, signature, target, tenant);
CREATE INDEX ledger_dead_letter_newest ON ledger_dead_letter (number, status, signature, target, tenant);
