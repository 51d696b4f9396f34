//! Every action of the console with its command and its path in the API. The API path decides which role may do it.

use axum::http::Method;

use crate::admin::{Caller, Right};

/// Something that a person can change in the console.
#[derive(Debug)]
pub(super) struct ConsoleAction {
    /// Where its form is submitted to.
    pub(super) path: &'static str,
    /// The page with its form.
    pub(super) form: &'static str,
    /// The same in the admin API.
    pub(super) api: &'static str,
    /// The same on the command line.
    pub(super) command: &'static str,
}

macro_rules! actions {
    ($($name:ident: $path:literal at $form:literal, $api:literal, $command:literal;)*) => {
        $(pub(super) const $name: ConsoleAction =
            ConsoleAction { path: $path, form: $form, api: $api, command: $command };)*

        /// All actions.
        pub(super) const ALL: [&ConsoleAction; [$($path),*].len()] = [$(&$name),*];
    };
}

// The tests read this list: a path, the page with its form, the path of the API, the command.
actions! {
    SETTLE_KEY: "/keys/{id}/settle" at "/keys/{id}/settle", "/v1/keys/{id}/settle", "semel keys settle";
    FORGET_KEY: "/keys/{id}/forget" at "/keys/{id}/forget", "/v1/keys/{id}/forget", "semel keys forget";
    DISCARD: "/dead-letters/{id}/discard" at "/dead-letters/{id}/discard", "/v1/dead-letters/{id}/discard", "semel dlq discard";
    RESTORE: "/dead-letters/{id}/restore" at "/dead-letters/{id}/restore", "/v1/dead-letters/{id}/restore", "semel dlq restore";
    EDIT: "/dead-letters/{id}/edit" at "/dead-letters/{id}/edit", "/v1/dead-letters/{id}/edit", "semel dlq edit";
    DISCARD_MATCHING: "/dead-letters/discard" at "/dead-letters/discard", "/v1/dead-letters/discard", "semel dlq discard --status";
    START_REPLAY: "/replays" at "/replays/new", "/v1/replays", "semel replay";
    PAUSE_REPLAY: "/replays/{id}/pause" at "/replays/{id}/pause", "/v1/replays/{id}/pause", "semel replay --job ID --pause";
    RESUME_REPLAY: "/replays/{id}/resume" at "/replays/{id}/resume", "/v1/replays/{id}/resume", "semel replay --job ID --resume";
    CANCEL_REPLAY: "/replays/{id}/cancel" at "/replays/{id}/cancel", "/v1/replays/{id}/cancel", "semel replay --job ID --cancel";
    PACE_REPLAY: "/replays/{id}/pace" at "/replays/{id}/pace", "/v1/replays/{id}/pace", "semel replay --job ID --rate";
    PAUSE_TARGET: "/targets/{name}/pause" at "/targets/{name}/pause", "/v1/targets/{name}/pause", "semel targets pause";
    RESUME_TARGET: "/targets/{name}/resume" at "/targets/{name}/resume", "/v1/targets/{name}/resume", "semel targets resume";
    RETRY_TARGET: "/targets/{name}/retry" at "/targets/{name}/retry", "/v1/targets/{name}/retry", "semel targets retry";
    CANCEL_RUNS: "/runs/cancel" at "/runs/cancel", "/v1/runs/{id}/cancel", "semel runs cancel";
}

/// Forms that change nothing but the visit itself.
const OWN: [&str; 4] = ["/login", "/logout", "/theme", "/shortcuts"];

/// A form that reads: what it asks for is a secret, so it is not in an address.
pub(super) const FIND_KEY: ConsoleAction = ConsoleAction {
    path: "/keys/find",
    form: "/keys/find",
    api: "/v1/keys/find",
    command: "semel keys find",
};

impl ConsoleAction {
    /// The right that the same call of the API needs.
    fn right(&self) -> Option<Right> {
        Right::needed(&Method::POST, self.api)
    }

    /// True if the caller may do it.
    pub(super) fn is_allowed(&self, caller: &Caller) -> bool {
        self.right().is_none_or(|right| caller.may(right).is_ok())
    }

    /// What a request to this path needs. The page with the form of an action needs the same as the action: it can show what
    /// only the action needs, such as a payload. A form whose path is not listed needs the most.
    pub(super) fn right_at(method: &Method, path: &str) -> Option<Right> {
        if matches!(*method, Method::GET | Method::HEAD) {
            let action = ALL.iter().chain(&[&FIND_KEY]).find(|action| action.form == path);
            return action.map_or(Some(Right::Look), |action| action.right());
        }
        if OWN.contains(&path) {
            return None;
        }
        ALL.iter()
            .chain(&[&FIND_KEY])
            .find(|action| action.path == path)
            .map_or(Some(Right::Administrate), |action| action.right())
    }
}
