//! The file tests of programs.

use std::fmt;
use std::path::Path;

use phalanx_ir::text::ParseError;
use phalanx_program::Program;
use phalanx_testkit::filetest::{self, Level};

/// A program, which is verified when it is read: an unsound one is refused at its last line.
#[derive(PartialEq)]
struct Frozen(Program);

impl fmt::Display for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Level for Frozen {
    fn parse(text: &str) -> Result<Self, ParseError> {
        text.parse().map(Frozen)
    }

    fn broken(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

#[test]
fn programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../filetests/program");
    filetest::check_level::<Frozen>(&folder, &[]);
}
