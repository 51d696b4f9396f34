//! Lists of a running server: pages, `--limit`, `--cursor` and `--watch`.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::remote::{QueryString, get, print};
use super::screen::{with_causes, write_line};
use crate::cli::Remote;
use crate::client::AdminClient;

/// How often `--watch` looks.
const EVERY: Duration = Duration::from_secs(2);
/// The longest page of the server.
const LONGEST_PAGE: usize = 1_000;
/// How many pages of a list are read that are not full: a filter that finds little must not read the whole store.
const SHORT_PAGES: u32 = 50;

/// Whether a command shows its answer again and again.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Watch {
    /// Repeat every two seconds, until Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,
}

/// The part of a list that is shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct Paging {
    /// Maximum number of lines
    #[arg(long, value_name = "N", default_value = "100", value_parser = at_least_one)]
    pub(crate) limit: usize,
    /// Continue an earlier list
    #[arg(long)]
    pub(crate) cursor: Option<String>,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// The items of a list, and how to read on.
pub(crate) struct Listed {
    pub(crate) items: Vec<Value>,
    /// Cursor of the item after the last one.
    pub(crate) next: Option<String>,
    /// True if the search ended before it found as many as were asked for.
    pub(crate) is_cut_short: bool,
}

/// The pages of a list.
pub(crate) struct Pages<'a> {
    client: &'a AdminClient,
    path: String,
    query: QueryString,
    next: NextPage,
}

/// The next page.
enum NextPage {
    First,
    After(String),
    None,
}

/// A limit of a list.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|limit| *limit > 0).ok_or_else(|| "expected a number, at least 1".to_owned())
}

impl Watch {
    /// Shows what `fetch` returns, once or repeatedly. On a terminal each answer replaces the one before. A server that does not answer
    /// ends the command only the first time: it may be restarting.
    pub(crate) async fn show<T, F: Future<Output = anyhow::Result<T>>>(
        self,
        remote: &Remote,
        mut fetch: impl FnMut() -> F,
        show: impl Fn(T) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut seen = fetch().await?;
        let on_terminal = std::io::stdout().is_terminal() && !remote.json;
        loop {
            if self.watch && on_terminal {
                // Home, and nothing below.
                write!(std::io::stdout(), "\x1b[H\x1b[2J")?;
            }
            show(seen)?;
            if !self.watch {
                return Ok(());
            }
            seen = loop {
                tokio::time::sleep(EVERY).await;
                match fetch().await {
                    Ok(seen) => break seen,
                    Err(error) => eprintln!("semel: {}", with_causes(&error)),
                }
            };
            if !on_terminal && !remote.json {
                write_line("")?;
            }
        }
    }
}

impl Paging {
    /// Prints the list at `path` as JSON, or by `table`.
    pub(crate) async fn show(
        &self,
        remote: &Remote,
        path: &str,
        query: QueryString,
        table: impl Fn(&[Value]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let client = &AdminClient::of(remote)?;
        let fetch = || Pages::new(client, path, query.clone()).after(self.cursor.clone()).collect(self.limit);
        self.watch.show(remote, fetch, |listed| listed.show(remote, &table)).await
    }
}

impl Listed {
    /// Prints the list as JSON, or by `table`; and on standard error how to read on.
    pub(crate) fn show(
        self,
        remote: &Remote,
        table: impl FnOnce(&[Value]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if remote.json {
            return print(&json!({ "items": self.items, "next": self.next }));
        }
        table(&self.items)?;
        match self.next {
            Some(next) if self.is_cut_short => {
                eprintln!("the search is not complete: continue it with --cursor {next}");
            }
            Some(next) => eprintln!("there are more: add --cursor {next}"),
            None => {}
        }
        Ok(())
    }
}

impl<'a> Pages<'a> {
    /// The pages of the list at `path`.
    pub(crate) fn new(client: &'a AdminClient, path: impl Into<String>, query: QueryString) -> Self {
        Self { client, path: path.into(), query, next: NextPage::First }
    }

    /// Begins at a cursor that an earlier list ended with.
    pub(crate) fn after(mut self, cursor: Option<String>) -> Self {
        if let Some(cursor) = cursor {
            self.next = NextPage::After(cursor);
        }
        self
    }

    /// The items up to `limit`, and the cursor of those after them.
    pub(crate) async fn collect(mut self, limit: usize) -> anyhow::Result<Listed> {
        let (mut items, mut short) = (Vec::new(), 0);
        while items.len() < limit && short < SHORT_PAGES {
            let wanted = (limit - items.len()).min(LONGEST_PAGE);
            let Some(page) = self.next_up_to(Some(wanted)).await? else { break };
            short += u32::from(page.len() < wanted);
            items.extend(page);
        }
        let is_cut_short = items.len() < limit;
        let next = match self.next {
            NextPage::After(cursor) => Some(cursor),
            NextPage::First | NextPage::None => None,
        };
        Ok(Listed { items, next, is_cut_short })
    }

    /// The next page; `None` after the last.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Vec<Value>>> {
        self.next_up_to(None).await
    }

    /// The next page, as long as the server gives; `None` after the last.
    pub(crate) async fn next_longest(&mut self) -> anyhow::Result<Option<Vec<Value>>> {
        self.next_up_to(Some(LONGEST_PAGE)).await
    }

    /// The next page with up to `limit` items, so that its cursor is that of the item after them.
    async fn next_up_to(&mut self, limit: Option<usize>) -> anyhow::Result<Option<Vec<Value>>> {
        let mut query = self.query.clone();
        if let Some(limit) = limit {
            query.add("limit", Some(&limit.clamp(1, LONGEST_PAGE).to_string()));
        }
        match &self.next {
            NextPage::First => {}
            NextPage::After(cursor) => query.add("cursor", Some(cursor)),
            NextPage::None => return Ok(None),
        }
        let mut page = get(self.client, &format!("{}{}", self.path, query.as_str())).await?;
        self.next = page["next"].as_str().map_or(NextPage::None, |next| NextPage::After(next.to_owned()));
        let Value::Array(items) = page["items"].take() else {
            bail!(
                "{} did not answer with a list, as an admin API does; check --admin",
                self.client.address()
            );
        };
        Ok(Some(items))
    }
}
