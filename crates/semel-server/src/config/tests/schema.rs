//! The schema and the reader agree.

use std::collections::BTreeSet;

use serde_json::Value;
use toml::de::DeTable;

use super::*;
use crate::config::problem::Problems;
use crate::config::reader::Table;
use crate::config::schema::schema;

/// The paths of all properties of a schema.
fn properties(root: &Value, schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        properties(root, &root["$defs"][name], path, found);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        properties(root, property, &below, found);
        found.insert(below);
    }
    if !schema["items"].is_null() {
        properties(root, &schema["items"], path, found);
    }
    for choice in schema["anyOf"].as_array().into_iter().flatten() {
        properties(root, choice, path, found);
    }
}

// What the schema lists is what is read, and the other way round.
#[test]
fn the_schema_lists_what_is_read() {
    let schema = schema();
    let mut listed = BTreeSet::new();
    properties(&schema, &schema, "", &mut listed);
    // Every table there is, so that all their keys are asked for.
    let text = EXAMPLE
        .replace("# tls = ", "tls = ")
        .replace("# jwt = { jwks", "jwt = { secret = { env = \"X\" }, jwks")
        .replace("url = \"embedded:./semel-data\"", "url = { env = \"X\" }")
        .replace("# url = \"embedded:./semel-ledger\"", "url = { env = \"X\" }")
        .replace("# secret = { env = \"LEDGER", "secret = { env = \"LEDGER")
        .replace("# bearer", "bearer")
        .replace("url = \"redis://127.0.0.1:6379\"\nstream", "url = { env = \"Y\" }\nstream")
        .replace("buffer = \"redis://127.0.0.1:6379\"", "buffer = { env = \"Y\" }")
        .replace("# coordinate = \"redis://127.0.0.1:6379\"", "coordinate = { env = \"Y\" }");
    let problems = Problems::new("semel.toml", &text);
    let table = DeTable::parse(&text).unwrap();
    Config::read(Table::root(&table, &problems), &ServeArgs::default(), &EVERYTHING);
    assert_eq!(problems.asked(), listed);
}

/// The settings of a schema below `table`, each with what it takes.
fn settings<'a>(schema: &'a Value, table: &str, found: &mut Vec<(String, String, &'a Value)>) {
    for (name, setting) in schema["properties"].as_object().into_iter().flatten() {
        let below = if table.is_empty() { name.clone() } else { format!("{table}.{name}") };
        if setting["properties"].is_object() {
            settings(setting, &below, found);
        } else if setting["items"]["properties"].is_object() {
            settings(&setting["items"], &format!("[[{below}]]"), found);
        } else {
            found.push((table.to_owned(), name.clone(), setting));
        }
    }
}

// The reader's own words about a value that no setting takes are those of the schema.
#[test]
fn every_setting_takes_what_the_schema_says() {
    let schema = schema();
    let mut found = Vec::new();
    settings(&schema, "", &mut found);
    for (table, name, takes) in found {
        let expected = match (takes["type"].as_str(), takes["$ref"].as_str()) {
            _ if takes["enum"].is_array() && name != "profile" && name != "expired" => {
                let words = takes["enum"].as_array().unwrap().iter().map(Value::to_string);
                format!("expected {}", words.collect::<Vec<_>>().join(" or "))
            }
            (Some("integer"), _) => {
                format!("expected a whole number from {} to {}", takes["minimum"], takes["maximum"])
            }
            (Some("boolean"), _) => "expected true or false".to_owned(),
            (Some("array"), _) if takes["items"]["$ref"].is_string() => {
                "expected a list of durations".to_owned()
            }
            (Some("array"), _) => "expected a list of texts".to_owned(),
            (Some("object"), _) => "expected durations by name".to_owned(),
            (_, Some("#/$defs/duration")) => "expected a duration such as".to_owned(),
            (_, Some("#/$defs/size")) => "expected a size such as".to_owned(),
            // Secrets and certificates have tests of their own.
            (_, Some(_)) => continue,
            _ if takes["anyOf"][1]["type"] == "array" => {
                "expected text in quotes or a list of texts".to_owned()
            }
            _ if name == "expired" => "expected a whole number".to_owned(),
            _ => "expected text in quotes".to_owned(),
        };
        let (tables, rest) = match table.strip_prefix("[[").and_then(|table| table.split_once("]]")) {
            Some((tables, rest)) => (format!("[[{tables}]]"), rest.trim_start_matches('.').to_owned()),
            None => (String::new(), table.clone()),
        };
        let key = if rest.is_empty() { name.clone() } else { format!("{rest}.{name}") };
        let upstream = if key == "gateway.upstream" { "" } else { "gateway.upstream = \"http://h\"\n" };
        let text = format!("{upstream}{tables}\n{key} = 1979-05-27\n");
        let problems = parse(&text).err().unwrap_or_default();
        let wanted = format!("{name}: {expected}");
        assert!(
            problems.iter().any(|problem| problem.contains(&wanted)),
            "{wanted} in {problems:?} of {text}"
        );
    }
}
