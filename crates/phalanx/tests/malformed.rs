//! A gallery of broken files, and the message that each of them gets.
//!
//! `malformed/FORMAT/` holds the inputs of one format. Beside an input `NAME` stands `NAME.expected`: the whole message, or
//! `ok` for one that is to be accepted. With `PHALANX_BLESS=1` in the environment messages are rewritten instead of compared.
//! The inputs are also what fuzzing starts from, and what it finds ends here.

mod formats;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use formats::{FORMATS, Reader};

#[test]
fn broken_files_get_the_message_written_beside_them() {
    let bless = std::env::var_os("PHALANX_BLESS").is_some_and(|value| value == "1");
    let gallery = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/malformed");
    let mut wrong = Vec::new();
    for (format, read) in FORMATS {
        let inputs = inputs(&gallery.join(format));
        assert!(!inputs.is_empty(), "the gallery has no `{format}`");
        for input in inputs {
            wrong.extend(check(*read, &input, bless));
        }
    }
    // Whether that works is nobody's concern: it is in the system's folder for temporary files.
    let _ = fs::remove_dir_all(formats::scratch());
    assert!(wrong.is_empty(), "{} messages are wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// The files of a folder that are no expected messages, in the order of their names.
fn inputs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut inputs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    inputs.retain(|path| path.extension().is_none_or(|extension| extension != "expected"));
    inputs.sort();
    inputs
}

/// What is wrong with the message that an input gets, if anything.
fn check(read: Reader, input: &Path, bless: bool) -> Option<String> {
    let mut beside = input.as_os_str().to_os_string();
    beside.push(".expected");
    let bytes = fs::read(input).expect("a file of the gallery is readable");
    let found = match catch_unwind(|| read(&bytes)) {
        Ok(result) => result.map_or_else(|message| message, |()| "ok".into()),
        Err(_) => return Some(format!("{}: a panic", input.display())),
    };
    if bless {
        fs::write(beside, format!("{found}\n")).expect("the gallery is writable");
        return None;
    }
    let expected = fs::read_to_string(&beside).unwrap_or_default();
    let expected = expected.strip_suffix('\n').unwrap_or(&expected);
    (found != expected).then(|| format!("{}: expected\n{expected}\nbut found\n{found}", input.display()))
}
