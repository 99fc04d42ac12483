//! The passes: file tests and scenarios.

mod files;
mod scenarios;
