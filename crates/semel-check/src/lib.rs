//! The tester: asks an API, over the wire, whether it is really idempotent.
//!
//! A **storyboard** is a YAML file of phases and steps: requests, what is captured from their answers, and checks on one
//! answer or across many. The built-in **suites** are storyboards too, and can be read as documentation.
//!
//! ```no_run
//! # async fn example() -> Result<(), semel_check::Error> {
//! use semel_check::{Options, Runner, suite};
//!
//! let runner = Runner::new(Options::new("http://127.0.0.1:8080"))?;
//! let report = runner.run(&[suite("ietf").expect("it is built in")], &|_| {}).await?;
//! assert!(report.is_good(), "{:?}", report.failed_cases());
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! - [`Storyboard`] (`storyboard`, `load`, `reader`, `yaml`): a file, read and checked; mistakes with their places.
//! - `check`, `path`, `invariant`: what is asked of answers. `answer`: what is read out of them.
//! - `substitute`: values in requests. `gate`: what applies at all.
//! - [`Runner`] (`run`): phases and steps in order, cascades, captures, grades.
//! - `call`, `mcp`, `wire`, `dispatch`: how requests travel, one at a time or all at once.
//! - [`Report`] (`report`, `redact`): for people, as JSON, as JUnit; never a secret.
//! - [`suite`] (`suites`): the built-in ones.

mod answer;
mod call;
mod check;
mod dispatch;
mod error;
mod gate;
mod invariant;
mod load;
mod mcp;
mod path;
mod reader;
mod redact;
mod report;
mod run;
mod storyboard;
mod substitute;
mod suites;
mod wire;
mod yaml;

pub use self::answer::Extraction;
pub use self::error::{Error, Mistake, Place};
pub use self::report::{
    CaseReport, FileReport, Grade, Outcome, Paint, Reason, Report, Skip, StepReport, Summary, Telling,
    Validation, json, junit, pretty,
};
pub use self::run::{Options, Progress, Runner};
pub use self::storyboard::{Level, Storyboard, Transport};
pub use self::suites::{SUITES, Suite, suite, template};
