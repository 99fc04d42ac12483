//! The words of a job's command line: flags that are set in it, and how a shell reads it.
//!
//! The first word is a command of ours, after which its flags stand; what they mean is not known here.

use std::ffi::{OsStr, OsString};

/// Adds a flag without value.
pub fn add_flag(job: &mut Vec<OsString>, flag: &str) {
    // Right behind the command: nothing there can be taken for anything else.
    job.insert(job.len().min(1), flag.into());
}

/// Gives a flag this value, instead of the one it may have.
pub fn set_flag(job: &mut Vec<OsString>, flag: &str, value: impl Into<OsString>) {
    let joined = format!("{flag}=");
    job.retain(|word| !word.as_encoded_bytes().starts_with(joined.as_bytes()));
    if let Some(at) = job.iter().position(|word| word == OsStr::new(flag)) {
        job.drain(at..job.len().min(at + 2));
    }
    let at = job.len().min(1);
    job.splice(at..at, [flag.into(), value.into()]);
}

/// A word as a shell reads it.
pub fn quoted(word: &OsString) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn flags_are_set_behind_the_command() {
        for before in ["train --steps 3 --plan tp", "train --plan=tp --steps 3", "train --steps 3"] {
            let mut job = words(before);
            set_flag(&mut job, "--plan", "dp");
            assert_eq!(job, words("train --plan dp --steps 3"), "{before}");
            add_flag(&mut job, "--resume");
            assert_eq!(job, words("train --resume --plan dp --steps 3"), "{before}");
        }
        let mut job = words("train --plan-x 1 -- run.toml");
        set_flag(&mut job, "--plan", "dp");
        assert_eq!(job, words("train --plan dp --plan-x 1 -- run.toml"));
    }

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        let words = ["--plan=dp2-tp2", "two words", "it's", "", "$HOME"];
        let quoted = words.map(|word| quoted(&word.into()));
        assert_eq!(quoted, ["--plan=dp2-tp2", "'two words'", r"'it'\''s'", "''", "'$HOME'"]);
    }
}
