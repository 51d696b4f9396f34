//! The steps that differ where calls are MCP messages: `messages` admits a call, `tool_answer` reads and stores its answer (with `live`,
//! for streams), `hear` finds the answer in a response, and `ask` lists the tools of the upstream.

mod ask;
mod hear;
mod live;
mod messages;
mod tool_answer;

use http::Method;

pub(super) use self::messages::WatchedReply;
use crate::codec::{Codec, KeyedTools};
use crate::mcp::tools::Tools;
use crate::policy::RoutePolicy;
use crate::profile::ADCP_MUTATING_TOOLS;

/// The tools that need a key; `None` where requests are calls.
pub(super) fn tools<'a>(codec: &Codec, mut routes: impl Iterator<Item = &'a RoutePolicy>) -> Option<Tools> {
    let Codec::Mcp { tools } = codec else { return None };
    if routes.any(|route| route.guards(&Method::POST)) {
        log_guarded_tools(tools);
    }
    Some(Tools::new(tools))
}

/// Logs at start which tool calls are guarded.
fn log_guarded_tools(tools: &KeyedTools) {
    match tools {
        KeyedTools::Listed => tracing::info!(
            target: "semel",
            tools = ADCP_MUTATING_TOOLS.join(", "),
            "these tools need an idempotency_key, and so does a tool whose schema in tools/list requires it; calls of \
             other tools are guarded if they carry one"
        ),
        KeyedTools::Named(names) => tracing::info!(
            target: "semel",
            tools = names.join(", "),
            "these tools need an idempotency_key; calls of other tools are guarded if they carry one"
        ),
    }
}
