//! Looking: events, deliveries, the audit log, numbers.

use semel::key::KeyId;

use super::EmbeddedLedger;
use super::database::now;
use crate::delivery::{Delivery, DeliveryHistory};
use crate::event::Event;
use crate::id::{DeliveryId, EventId};
use crate::ledger::sql::reading;
use crate::ledger::{Answer, AuditLine, Audited, DeliveryFilter, EventFilter, Page, Paged, Reading, Totals};

impl Reading for EmbeddedLedger {
    fn event(&self, id: EventId) -> Answer<'_, Option<Event>> {
        Box::pin(async move { self.read(|db| now(reading::event(db, id))) })
    }

    fn events(&self, filter: EventFilter, page: Page) -> Answer<'_, Paged<Event>> {
        Box::pin(async move { self.read(|db| now(reading::events(db, &filter, &page))) })
    }

    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<DeliveryHistory>> {
        Box::pin(async move { self.read(|db| now(reading::delivery(db, id))) })
    }

    fn deliveries(&self, filter: DeliveryFilter, page: Page) -> Answer<'_, Paged<Delivery>> {
        Box::pin(async move { self.read(|db| now(reading::deliveries(db, &filter, &page))) })
    }

    fn deliveries_of(&self, event: EventId) -> Answer<'_, Vec<DeliveryHistory>> {
        Box::pin(async move { self.read(|db| now(reading::deliveries_of(db, event))) })
    }

    fn find_events(&self, request_id: Option<String>, dedupe: Option<KeyId>) -> Answer<'_, Vec<EventId>> {
        Box::pin(async move { self.read(|db| now(reading::find_events(db, request_id.as_deref(), dedupe))) })
    }

    fn audit(&self, line: AuditLine) -> Answer<'_, ()> {
        Box::pin(self.write(move |work, _| work.audit(&line)))
    }

    fn audit_log(&self, subject: Option<String>, page: Page) -> Answer<'_, Paged<Audited>> {
        Box::pin(async move { self.read(|db| now(reading::audit_log(db, subject.as_deref(), &page))) })
    }

    fn totals(&self) -> Answer<'_, Totals> {
        Box::pin(async move { self.read(|db| now(reading::totals(db))) })
    }

    fn sweep(&self, keep: std::time::Duration, limit: u32) -> Answer<'_, u64> {
        Box::pin(self.write(move |work, _| work.sweep(keep, limit)))
    }
}
