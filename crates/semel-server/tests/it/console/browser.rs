//! Every page in Chromium: light, dark and 390 px wide, judged by axe. The screenshots are kept in target/console-screenshots.

use serde_json::{Value, json};

use super::{Person, Tokens, World, browse, screenshots};

/// Every page, by the name of its screenshot.
fn pages(world: &World) -> Vec<Value> {
    let filled = world.fill();
    let person = Person::local(world);
    let plan = person.get("/replays/new?status=failed").text();
    let fingerprint = super::actions::hidden(&plan, "fingerprint");
    let fields = [
        ("status", "failed"),
        ("planned", "6"),
        ("fingerprint", &fingerprint),
        ("canary", "1"),
        ("rate", "1"),
        ("reason", "warehouse is back"),
    ];
    let job = person.submit("/", "/replays", &fields);
    let job = job.header("location").expect("a job").split('?').next().unwrap().to_owned();
    world.api().post("/v1/targets/billing/pause", r#"{"reason": "they move house"}"#).expect(200);
    let page = |name: &str, path: &str| json!({ "name": name, "path": path });
    vec![
        page("overview", "/"),
        page("keys", "/keys"),
        page("doubt", "/keys?phase=in_doubt"),
        page("key-find", "/keys/find"),
        page("key", &format!("/keys/{}", filled.done)),
        page("settle", &format!("/keys/{}/settle", filled.doubt)),
        page("forget", &format!("/keys/{}/forget", filled.doubt)),
        page("story", "/story/second"),
        page("story-of-event", &format!("/story/{}", filled.event)),
        page("story-ask", "/story"),
        page("login", "/login"),
        page("search", "/search?q=lost-"),
        page("nothing-found", "/search?q=zzz-nothing"),
        page("dead-letters", "/dead-letters"),
        page("letters", "/dead-letters/list?status=pending"),
        page("letter", &format!("/dead-letters/{}?payload=show", filled.letter)),
        page("edit", &format!("/dead-letters/{}/edit", filled.letter)),
        page("discard", "/dead-letters/discard?target=warehouse&status=pending"),
        page("discard-one", &format!("/dead-letters/{}/discard", filled.letter)),
        page("restore", &format!("/dead-letters/{}/restore", filled.letter)),
        page("replays", "/replays"),
        page("replay-new", "/replays/new?status=failed&targets=warehouse"),
        page("replay", &job),
        page("pace", &format!("{job}/pace")),
        page("pause-replay", &format!("{job}/pause")),
        page("resume-replay", &format!("{job}/resume")),
        page("cancel-replay", &format!("{job}/cancel")),
        page("targets", "/targets"),
        page("target", "/targets/warehouse"),
        page("paused", "/targets/billing"),
        page("resume", "/targets/billing/resume"),
        page("pause", "/targets/warehouse/pause"),
        page("retry", "/targets/warehouse/retry"),
        page("delivery", &format!("/deliveries/{}", filled.delivery)),
        page("events", "/events"),
        page("event", &format!("/events/{}", filled.event)),
        page("runs", "/runs"),
        page("run", &format!("/runs/{}", filled.run)),
        page("cancel", &format!("/runs/cancel?id={}", filled.run)),
        page("audit", "/audit"),
        page("runbook", "/runbook"),
        page("configuration", "/configuration"),
        json!({ "name": "not-found", "path": "/keys/00000000000000000000000000000000", "refused": true }),
    ]
}

/// The addresses of the console's pages, read from its router: a new page is judged too.
fn routes() -> Vec<String> {
    let source = include_str!("../../../src/console.rs");
    let router = source.rsplit_once("Router::new()").unwrap().1.split_once(".layer(").unwrap().0;
    let actions = super::actions::listed();
    let path_of = |name: &str| {
        let at = include_str!("../../../src/console/actions.rs");
        let (_, rest) =
            at.split_once(&format!("\n    {name}: \"")).unwrap_or_else(|| panic!("the action {name}"));
        let path = rest.split_once('"').unwrap().0;
        assert!(actions.iter().any(|action| action.path == path));
        path.to_owned()
    };
    let mut routes = Vec::new();
    for route in router.split(".route(").skip(1) {
        let (path, handlers) = route.trim().split_once(',').unwrap();
        let is_page = handlers.trim_start().starts_with("get(") && !path.starts_with("live::");
        if is_page && !path.contains("/assets/") {
            routes.push(match path.strip_prefix("actions::") {
                Some(name) => path_of(name.trim_end_matches(".path")),
                None => path.trim_matches('"').to_owned(),
            });
        }
    }
    assert!(routes.len() > 30, "the router is read: {routes:?}");
    routes
}

/// True if the path has the form of the route: each segment is the same, or a parameter.
fn is_at(path: &str, route: &str) -> bool {
    let path = path.split('?').next().unwrap();
    let (path, route): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), route.split('/').collect());
    path.len() == route.len() && path.iter().zip(&route).all(|(one, of)| of.starts_with('{') || one == of)
}

fn none(found: &Value, what: &str) {
    assert_eq!(found[what], json!([]), "{what}");
}

#[test]
fn every_page_is_readable_in_light_dark_and_on_a_phone() {
    let world = World::start(Tokens::None);
    let pages = pages(&world);
    for route in routes() {
        let is_judged = pages.iter().any(|page| is_at(page["path"].as_str().unwrap(), &route));
        assert!(is_judged, "the page at {route} is in the list of pages");
    }
    let found = browse(&json!({ "url": world.semel.admin_url(), "out": screenshots(), "pages": pages }));
    for what in ["violations", "wide", "dialogs", "missing"] {
        none(&found, what);
    }
    // The page that is not found is the one complaint of the browser.
    let complaints = found["complaints"].as_array().unwrap();
    assert!(complaints.iter().all(|one| one.as_str().unwrap().contains("not-found")), "{complaints:#?}");
}

#[test]
fn empty_pages_say_what_would_appear() {
    let world = World::start(Tokens::Some);
    let names = ["", "keys", "dead-letters", "replays", "targets", "events", "runs", "audit", "runbook"];
    let pages: Vec<Value> = names
        .iter()
        .map(|name| json!({ "name": format!("empty-{name}"), "path": format!("/{name}") }))
        .collect();
    let orders = json!({
        "url": world.semel.admin_url(), "out": screenshots(), "pages": pages, "variants": ["light"],
        "login": super::token("viewer"),
    });
    let found = browse(&orders);
    for what in ["violations", "complaints", "wide", "missing"] {
        none(&found, what);
    }
    let viewer = Person::log_in(&world, "viewer");
    for (name, words) in [
        ("keys", "leaves a record here"),
        ("dead-letters", "all its attempts failed"),
        ("audit", "leave an entry here"),
    ] {
        assert!(viewer.get(&format!("/{name}")).text().contains(words), "{name}");
    }
}
