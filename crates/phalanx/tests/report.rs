//! Steps as people see them: the trace keeps the rules of its format, and the page works in a browser.
#![allow(clippy::unwrap_used)]

mod example;
mod page;
mod trace;
