//! Who gets in: sessions, roles, forms of other sites, throttled logins.

use std::io::Read as _;

use rustix::process::Signal;
use semel_testbed::wait;
use serde_json::Value;

use super::actions::Listed;
use super::{Person, ROLES, Tokens, World, encoded, token};
use crate::kit::{PATIENCE, metric};

const CSP: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                   form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

#[test]
fn a_token_becomes_a_session_and_ends_with_it() {
    let world = World::start(Tokens::Some);
    let admin = world.semel.admin();
    let asked = admin.get("/keys?phase=done");
    assert_eq!((asked.status, asked.header("location")), (303, Some("/login?next=%2Fkeys%3Fphase%3Ddone")));
    let form = admin.get("/login");
    assert_eq!((form.status, form.header("content-security-policy")), (200, Some(CSP)));
    assert!(!form.text().contains("embedded"), "a stranger sees nothing of the server");
    assert_eq!(admin.get("/console/live").status, 401);
    let stranger = Person::local(&world);
    let answer =
        stranger.submit("/login", "/login", &[("token", &token("operator")), ("next", "//evil.example")]);
    assert_eq!((answer.status, answer.header("location")), (303, Some("/")));
    let cookie = answer.header("set-cookie").unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=28800"] {
        assert!(cookie.contains(part), "{part} in {cookie}");
    }
    assert!(!cookie.contains(&token("operator")));
    let wrong = stranger.submit("/login", "/login", &[("token", "wrong-token-of-more-than-32-bytes")]);
    assert!(wrong.status == 401 && wrong.text().contains("the token is not known"), "{}", wrong.text());
    let producer = stranger.submit("/login", "/login", &[("token", &token("producer"))]);
    assert_eq!(producer.status, 403);
    // The cookie is for the console only.
    let person = Person::log_in(&world, "operator");
    assert_eq!((person.get("/").status, person.get("/v1/keys").status), (200, 401));
    let page = person.get("/");
    assert_eq!(
        (page.header("content-security-policy"), page.header("cache-control")),
        (Some(CSP), Some("no-store"))
    );
    let mut stream = person.listen(&world);
    let left = person.submit("/", "/logout", &[]);
    assert_eq!(left.status, 303);
    assert_eq!(person.get("/").status, 303, "the session has ended");
    stream.read_to_end(&mut Vec::new()).expect("the stream ends with the session");
    assert_eq!(person.get("/console/session").status, 401);
    assert!(!world.semel.log().contains(&token("operator")));
}

// A removed token ends its sessions.
#[test]
fn a_session_ends_with_its_token() {
    let world = World::start(Tokens::Some);
    let (viewer, operator) = (Person::log_in(&world, "viewer"), Person::log_in(&world, "operator"));
    assert_eq!((viewer.get("/").status, operator.get("/").status), (200, 200));
    assert_eq!(viewer.get("/console/session").status, 204);
    let (mut ends, stays) = (viewer.listen(&world), operator.listen(&world));
    let file = world._folder.path().join("semel.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let without =
        text.replace("name = \"the-viewer\"\nrole = \"viewer\"\nvalue = { env = \"T_viewer\" }", "");
    let without = without.replace("[[token]]\n\n", "");
    assert_ne!(text, without);
    std::fs::write(&file, without).unwrap();
    world.semel.signal(Signal::HUP);
    wait::until("the session has ended", PATIENCE, || viewer.get("/").status == 303).unwrap();
    assert_eq!(operator.get("/").status, 200);
    ends.read_to_end(&mut Vec::new()).expect("the stream ends with its token");
    wait::until("one stream is left", PATIENCE, || {
        metric(&world.semel.admin(), "semel_console_streams") == 1.0
    })
    .unwrap();
    drop(stays);
}

#[test]
fn guesses_are_slowed_down() {
    let world = World::start(Tokens::Some);
    let stranger = Person::local(&world);
    let form = stranger.form_token("/login");
    let guess = |token: &str| {
        stranger.http.post("/login", &encoded(&[("form_token", &form), ("token", token)])).status
    };
    let statuses: Vec<u16> = (0..30).map(|number| guess(&format!("guess-{number}"))).collect();
    assert!(statuses[..15].iter().all(|status| *status == 401), "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!(guess(&token("viewer")), 303, "a correct token is always answered");
}

// csrf, foreign Origin, foreign Host: with tokens and without.
#[test]
fn forms_of_other_sites_are_refused() {
    for tokens in [Tokens::None, Tokens::Some] {
        let world = World::start(tokens);
        let filled = world.fill();
        let person = match tokens {
            Tokens::None => Person::local(&world),
            Tokens::Some => Person::log_in(&world, "admin"),
        };
        let path = format!("/dead-letters/{}/discard", filled.letter);
        let form = person.form_token(&path);
        let body = encoded(&[("form_token", &form), ("reason", "r")]);
        let refused = |answer: crate::kit::Answer, what: &str| {
            assert_eq!(answer.status, 403, "{what}: {}", answer.text());
        };
        refused(person.http.post(&path, "reason=r"), "no form token");
        refused(
            person.http.post(&path, &encoded(&[("form_token", &"0".repeat(64)), ("reason", "r")])),
            "a wrong one",
        );
        refused(person.http.with("origin", "http://evil.example").post(&path, &body), "foreign Origin");
        refused(person.http.with("origin", "null").post(&path, &body), "opaque Origin");
        refused(person.http.with("sec-fetch-site", "cross-site").post(&path, &body), "foreign site");
        refused(person.http.with("host", "evil.example").post(&path, &body), "foreign Host");
        refused(person.http.with("host", "evil.example").get("/"), "foreign Host of a page");
        let status =
            || world.api().get(&format!("/v1/dead-letters/{}", filled.letter)).expect(200)["status"].clone();
        assert_eq!(status(), "pending", "nothing was changed");
        let own = person.http.with("sec-fetch-site", "same-origin").post(&path, &body);
        assert_eq!(own.status, 303, "{}", own.text());
        assert_eq!(status(), "discarded");
    }
}

// Every form: without its token, with the token of another visitor, and sent by another site.
#[test]
fn no_form_is_taken_from_another_site() {
    let world = World::start(Tokens::Some);
    let filled = world.fill();
    let (person, other) = (Person::log_in(&world, "admin"), Person::log_in(&world, "admin"));
    let job = world.api().post("/v1/replays", r#"{"status": "failed", "rate": 0.1, "limit": 1}"#).expect(201);
    let job = job["id"].as_str().unwrap();
    let done = || world.api().get("/v1/audit").expect(200)["items"].as_array().unwrap().len();
    let before = done();
    let (own, foreign) = (person.form_token("/"), other.form_token("/"));
    assert_ne!(own, foreign, "each session has its own");
    for path in super::actions::listed().iter().map(|action| action.path).chain([
        "/logout",
        "/theme",
        "/shortcuts",
        "/keys/find",
    ]) {
        let path = filled.with_ids(path, job);
        let with = |token: &str| encoded(&[("form_token", token), ("reason", "r"), ("confirm", "yes")]);
        let refused = |answer: crate::kit::Answer, what: &str| {
            assert_eq!(answer.status, 403, "{path}, {what}: {}", answer.text());
        };
        refused(person.http.post(&path, "reason=r"), "no form token");
        refused(person.http.post(&path, &with(&foreign)), "the token of another session");
        refused(person.http.with("origin", "http://evil.example").post(&path, &with(&own)), "foreign Origin");
        refused(person.http.with("sec-fetch-site", "cross-site").post(&path, &with(&own)), "foreign site");
        refused(person.http.with("host", "evil.example").post(&path, &with(&own)), "foreign Host");
    }
    assert_eq!(done(), before, "nothing was done");
    assert_eq!(person.get("/").status, 200, "nobody was logged out");
}

#[test]
fn roles_decide_about_buttons_and_forms() {
    let world = World::start(Tokens::Some);
    let filled = world.fill();
    let people = ROLES.map(|role| Person::log_in(&world, role));
    // The page, a button on it, the form's path, and who may.
    let table = [
        (
            format!("/keys/{}", filled.doubt),
            "Settle…",
            format!("/keys/{}/settle", filled.doubt),
            [false, true, true],
        ),
        (
            format!("/keys/{}", filled.done),
            "Forget…",
            format!("/keys/{}/forget", filled.done),
            [false, true, true],
        ),
        (
            format!("/dead-letters/{}", filled.letter),
            "Discard…",
            format!("/dead-letters/{}/discard", filled.letter),
            [false, true, true],
        ),
        ("/replays".to_owned(), "New replay…", "/replays".to_owned(), [false, true, true]),
        // As in the API, where runs belong to producers.
        (format!("/runs/{}", filled.run), "Cancel…", "/runs/cancel".to_owned(), [false, false, true]),
    ];
    for (page, button, path, expected) in table {
        for ((person, role), may) in people.iter().zip(ROLES).zip(expected) {
            assert_eq!(person.get(&page).text().contains(button), may, "{role}: {button} on {page}");
            // Without a reason nothing is done; what counts is whether the role is refused first.
            let answer = person.submit("/", &path, &[]);
            assert_eq!(answer.status == 403, !may, "{role}: {path}: {}", answer.text());
        }
    }
    let payload = format!("/dead-letters/{}?payload=show", filled.letter);
    let sees = |person: &Person| person.get(&payload).text().contains("ann@example.com");
    assert_eq!(people.each_ref().map(sees), [false, true, true]);
    let hidden = people[1].get(&format!("/dead-letters/{}", filled.letter));
    assert!(!hidden.text().contains("ann@example.com"), "hidden until it is requested");
}

// Every action, with its form and its submission, needs the role that the same call of the API needs.
#[test]
fn forms_and_submissions_need_the_role_of_the_action() {
    let world = World::start(Tokens::Some);
    let filled = world.fill();
    let people = ROLES.map(|role| Person::log_in(&world, role));
    let job = world.api().post("/v1/replays", r#"{"status": "failed", "rate": 0.1, "limit": 1}"#).expect(201);
    for Listed { path, form, api, .. } in super::actions::listed() {
        let query = match form {
            "/runs/cancel" => format!("?id={}", filled.run),
            "/dead-letters/discard" => "?status=pending".to_owned(),
            "/replays/new" => "?status=failed".to_owned(),
            _ => String::new(),
        };
        let with_ids = |path| filled.with_ids(path, job["id"].as_str().unwrap());
        let (form, path, api) = (with_ids(form), with_ids(path), with_ids(api));
        for (person, role) in people.iter().zip(ROLES) {
            // Without a reason nothing is done; what counts is whether the role is refused first.
            let caller = world.semel.admin().with("authorization", &format!("Bearer {}", token(role)));
            let may = match caller.post(&api, "[").status {
                403 => false,
                400 => true,
                other => panic!("{api} answers {other} to {role}"),
            };
            assert!(may || role != "admin", "{api}");
            let page = person.get(&format!("{form}{query}"));
            assert_eq!(page.status, if may { 200 } else { 403 }, "{role}: GET {form}: {}", page.text());
            assert_eq!(page.text().contains("this needs"), !may, "the page names the role: {}", page.text());
            assert!(may || !page.text().contains("ann@example.com"), "{role}: {form} shows no payload");
            let answer = person.submit("/", &path, &[]);
            assert_eq!(answer.status == 403, !may, "{role}: POST {path}: {}", answer.text());
            assert_ne!(answer.status, 303, "{path} does nothing without a reason");
        }
    }
    let pages = ["/", "/targets", "/targets/warehouse"];
    for (person, may) in people.iter().zip([false, true, true]) {
        for page in pages {
            assert_eq!(person.get(page).text().contains("Pause…"), may, "{page}");
        }
    }
}

// The documentation says that these are in the log. Cancelled runs, logouts and refused forms were not.
#[test]
fn the_log_has_who_did_what_and_who_was_refused() {
    let world = World::start(Tokens::Some);
    let filled = world.fill();
    let (admin, viewer) = (Person::log_in(&world, "admin"), Person::log_in(&world, "viewer"));
    let cancel = [("id", filled.run.as_str()), ("reason", "not tonight")];
    assert_eq!(viewer.submit("/", "/runs/cancel", &cancel).status, 403);
    assert_eq!(viewer.get("/runs/cancel").status, 403);
    assert_eq!(admin.http.post("/runs/cancel", &encoded(&cancel)).status, 403, "no form token");
    assert_eq!(admin.http.with("origin", "http://evil.example").post("/runs/cancel", "").status, 403);
    assert_eq!(admin.submit("/", "/runs/cancel", &cancel).status, 303);
    let discard = format!("/dead-letters/{}/discard", filled.letter);
    assert_eq!(admin.submit("/", &discard, &[("reason", "test data")]).status, 303);
    assert_eq!(admin.submit("/", "/logout", &[]).status, 303);
    let stranger = Person::local(&world);
    let typed = "a-wrong-token-of-more-than-32-bytes";
    assert_eq!(stranger.submit("/login", "/login", &[("token", typed)]).status, 401);
    assert_eq!(stranger.submit("/login", "/login", &[("token", &token("producer"))]).status, 403);

    let log = world.semel.log();
    let lines: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["audit"] == true)
        .collect();
    let has = |expected: &[(&str, &str)]| {
        let found = lines.iter().any(|line| expected.iter().all(|(name, value)| line[*name] == *value));
        assert!(found, "{expected:?} in {lines:#?}");
    };
    let (done, refused) = (("outcome", "done"), ("outcome", "refused"));
    let by = |name| ("user", name);
    has(&[("operation", "login"), by("the-admin"), done]);
    has(&[("operation", "login"), ("outcome", "failed")]);
    has(&[("operation", "login"), by("the-producer"), refused]);
    has(&[("operation", "/runs/cancel"), by("the-viewer"), refused, ("code", "forbidden")]);
    has(&[("operation", "/runs/cancel"), by("the-admin"), refused, ("code", "foreign_form")]);
    has(&[("operation", "/runs/cancel"), refused, ("code", "foreign_origin")]);
    has(&[("operation", "cancel"), by("the-admin"), done, ("event_id", &filled.run)]);
    has(&[("operation", "discard"), by("the-admin"), done, ("dlq_id", &filled.letter)]);
    has(&[("operation", "logout"), by("the-admin"), done]);
    for secret in [&token("admin"), &token("producer"), typed, "ann@example.com"] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}

#[test]
fn files_may_be_kept_for_ever_and_pages_never() {
    let world = World::start(Tokens::None);
    let page = world.semel.admin().get("/").text();
    for extension in [".css", ".js"] {
        let end = page.find(extension).unwrap() + extension.len();
        let start = page[..end].rfind("/console/").unwrap();
        let asset = world.semel.admin().get(&page[start..end]);
        assert_eq!(asset.status, 200);
        assert_eq!(asset.header("cache-control"), Some("public, max-age=31536000, immutable"));
    }
    assert_eq!(world.semel.admin().get("/console/assets/other.css").status, 404);
}
