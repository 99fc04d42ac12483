//! Steps as people see them: the trace keeps the rules of its format, and the page works in a browser.
#![allow(clippy::unwrap_used)]

#[path = "report/example.rs"]
mod example;
#[path = "report/page.rs"]
mod page;
#[path = "report/trace.rs"]
mod trace;
