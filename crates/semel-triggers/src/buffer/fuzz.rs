//! Damaged bytes of buffered runs and of their changes.

use std::collections::BTreeMap;

use bytes::Bytes;
use semel_pipeline::event::{NewEvent, Notes, Trace};
use semel_pipeline::ledger::{Change, Patch};
use semel_testbed::fuzz::Fuzz;

use super::change::encode_change;
use super::format::{self, BufferedRun, encode_run};

fn run() -> NewEvent {
    NewEvent {
        order_key: Some("o".to_owned()),
        notes: Notes {
            tags: vec!["x".to_owned()],
            metadata: BTreeMap::from([("n".to_owned(), "1".to_owned())]),
        },
        trace: Trace { request_id: Some("r".to_owned()), traceparent: None },
        ..format::tests::run()
    }
}

#[test]
fn fuzz_buffered_run() {
    let keyless = NewEvent { dedupe: None, ..run() };
    let fuzz = Fuzz::new("buffered_run", include_str!("../../fuzz/buffered_run.seeds"));
    let fuzz = fuzz.seed(encode_run(&run())).seed(encode_run(&keyless));
    fuzz.tokens(&["\"id\":", "\"dedupe\":", "null", "[]", "{\"secs\":1,\"nanos\":0}", "\"generation\":"])
        .run(|input| {
            let read = BufferedRun::read(&Bytes::copy_from_slice(input), &Bytes::new(), None);
            // The reason without the position of the error.
            let read = read.map_err(|unreadable| {
                unreadable.why.split(" at line").next().unwrap_or_default().to_owned()
            })?;
            let again = BufferedRun::read(&encode_run(&read.run).into(), &Bytes::new(), None);
            assert_eq!(again.as_ref(), Ok(&read), "what is written can be read");
            Ok::<_, String>((read.run.dedupe.is_some(), read.run.payload.is_empty()))
        });
}

#[test]
fn fuzz_buffered_changes() {
    let change = Patch::Change(Change { add_tags: vec!["x".to_owned()], ..Change::default() });
    let bytes = Bytes::from(encode_run(&run()));
    let fuzz = Fuzz::new("buffered_changes", include_str!("../../fuzz/buffered_changes.seeds"));
    let fuzz =
        fuzz.seed(encode_change(&change)).seed([encode_change(&change), encode_change(&change)].concat());
    fuzz.tokens(&["\"increment\":{\"n\":1}", "\"tags\":[\"x\"]", "null"]).run(|input| {
        let read = BufferedRun::read(&bytes, &Bytes::copy_from_slice(input), None);
        let read = read
            .map_err(|unreadable| unreadable.why.split(" at line").next().unwrap_or_default().to_owned())?;
        let written: Vec<u8> = read.changes.iter().flat_map(encode_change).collect();
        let again = BufferedRun::read(&bytes, &written.into(), None);
        assert_eq!(again.as_ref(), Ok(&read), "what is written can be read");
        Ok::<_, String>((read.changes.len().min(4), read.current().cancelled))
    });
}
