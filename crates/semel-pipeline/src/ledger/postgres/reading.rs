//! Looking: events, deliveries, the audit log, numbers.

use std::time::Duration;

use semel::key::KeyId;

use super::PostgresLedger;
use super::link::Shape;
use super::sweep;
use crate::delivery::{Delivery, DeliveryHistory};
use crate::event::Event;
use crate::id::{DeliveryId, EventId};
use crate::ledger::sql::reading;
use crate::ledger::{Answer, AuditLine, Audited, DeliveryFilter, EventFilter, Page, Paged, Reading, Totals};

impl Reading for PostgresLedger {
    fn event(&self, id: EventId) -> Answer<'_, Option<Event>> {
        self.call(Shape::Read, id, |db, id| Box::pin(reading::event(db, *id)))
    }

    fn events(&self, filter: EventFilter, page: Page) -> Answer<'_, Paged<Event>> {
        self.call(Shape::Read, (filter, page), |db, (filter, page)| {
            Box::pin(reading::events(db, filter, page))
        })
    }

    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<DeliveryHistory>> {
        self.call(Shape::Read, id, |db, id| Box::pin(reading::delivery(db, *id)))
    }

    fn deliveries(&self, filter: DeliveryFilter, page: Page) -> Answer<'_, Paged<Delivery>> {
        self.call(Shape::Read, (filter, page), |db, (filter, page)| {
            Box::pin(reading::deliveries(db, filter, page))
        })
    }

    fn deliveries_of(&self, event: EventId) -> Answer<'_, Vec<DeliveryHistory>> {
        self.call(Shape::Read, event, |db, event| Box::pin(reading::deliveries_of(db, *event)))
    }

    fn find_events(&self, request_id: Option<String>, dedupe: Option<KeyId>) -> Answer<'_, Vec<EventId>> {
        let asked = (request_id.filter(|id| !id.contains('\0')), dedupe);
        self.call(Shape::Read, asked, |db, (request_id, dedupe)| {
            Box::pin(reading::find_events(db, request_id.as_deref(), *dedupe))
        })
    }

    fn audit(&self, line: AuditLine) -> Answer<'_, ()> {
        self.call(Shape::Statement, line, |db, line| Box::pin(reading::audit(db, line)))
    }

    fn audit_log(&self, subject: Option<String>, page: Page) -> Answer<'_, Paged<Audited>> {
        self.call(Shape::Read, (subject, page), |db, (subject, page)| {
            Box::pin(reading::audit_log(db, subject.as_deref(), page))
        })
    }

    fn totals(&self) -> Answer<'_, Totals> {
        self.call(Shape::Read, (), |db, ()| Box::pin(reading::totals(db)))
    }

    fn sweep(&self, keep: Duration, limit: u32) -> Answer<'_, u64> {
        Box::pin(async move { sweep::sweep(&self.shared, keep, limit).await })
    }
}
