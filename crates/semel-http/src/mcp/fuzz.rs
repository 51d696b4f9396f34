//! Damaged messages and event streams.

use std::mem::discriminant;

use semel_testbed::fuzz::Fuzz;
use serde_json::Value;

use super::request::{self, McpMessage};
use super::sse::SseReader;

#[test]
fn fuzz_mcp_message() {
    let tokens = [
        "\"method\"",
        "\"tools/call\"",
        "\"tools/list\"",
        "\"params\"",
        "\"name\"",
        "\"arguments\"",
        "\"idempotency_key\"",
        "\"id\"",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "null",
        "1e9",
        "\\u0000",
        "\\ud800",
    ];
    let fuzz = Fuzz::new("mcp_message", include_str!("../../fuzz/mcp_message.seeds")).tokens(&tokens);
    fuzz.run(|input| {
        let message = request::read(input).map_err(|refusal| refusal.reason)?;
        // An accepted message has one meaning: another parser finds the same tools in it.
        let value: Value = serde_json::from_slice(input).expect("a message is JSON");
        let tools =
            |value: &Value| (value["method"] == "tools/call").then(|| value["params"]["name"].clone());
        let (read, expected): (Vec<Value>, Vec<Value>) = match &message {
            McpMessage::Call(call) => (vec![call.tool.clone().into()], tools(&value).into_iter().collect()),
            McpMessage::Batch(calls) => (
                calls.iter().map(|call| call.tool.clone().into()).collect(),
                value.as_array().expect("a batch is a list").iter().filter_map(tools).collect(),
            ),
            McpMessage::List { .. } | McpMessage::Other => (Vec::new(), tools(&value).into_iter().collect()),
        };
        assert_eq!(read, expected);
        Ok::<_, String>((discriminant(&message), read.len()))
    });
}

#[test]
fn fuzz_event_stream() {
    let tokens = [
        "data: ",
        "data:",
        "event: message",
        "id: 1",
        "\n",
        "\r",
        "\r\n",
        ": comment",
        "\u{feff}",
        "retry: 5",
    ];
    let fuzz = Fuzz::new("event_stream", include_str!("../../fuzz/event_stream.seeds")).tokens(&tokens);
    fuzz.run(|input| {
        let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let (mut events, mut all) = (SseReader::default(), Vec::new());
            for piece in pieces {
                events.feed(piece, |event| all.push(event));
            }
            all
        };
        let whole = read(&mut std::iter::once(input));
        assert_eq!(read(&mut input.chunks(1)), whole, "where the stream is cut changes nothing");
        let mut end = 0;
        for event in &whole {
            assert!(
                end <= event.place.start && event.place.start < event.place.end,
                "places follow each other"
            );
            end = event.place.end;
        }
        assert!(end <= input.len() + 1);
        (whole.len(), whole.iter().map(|event| event.data.len().min(8)).sum::<usize>())
    });
}
