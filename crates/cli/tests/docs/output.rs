//! Comparing what a page shows with what is printed: numbers and spaces do not count, `...` stands for any lines.

/// Hexadecimal digits from which on a word is a hash.
const HASH: usize = 16;

/// The hashes of all lines of `shown`, each beside the printed one; or the first line that is not printed in its turn.
pub fn compare<'a>(shown: &'a str, printed: &'a str) -> Result<Vec<(&'a str, &'a str)>, &'a str> {
    let mut rest = printed.split(['\n', '\r']);
    let mut pairs = Vec::new();
    for line in shown.lines().filter(|line| !line.trim().is_empty() && line.trim() != "...") {
        let wanted = pattern(line);
        let found = rest.find(|printed| matches(&wanted, &pattern(printed))).ok_or(line)?;
        pairs.extend(hashes(line).zip(hashes(found)));
    }
    Ok(pairs)
}

/// The hashes in a line.
fn hashes(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() >= HASH)
}

/// Whether a line is the wanted one; one that ends with ` ...` wants only the beginning.
fn matches(wanted: &str, line: &str) -> bool {
    match wanted.strip_suffix(" ...") {
        Some(beginning) => line.starts_with(beginning),
        None => wanted == line,
    }
}

/// Units, of which people see the one that suits the number.
const UNITS: &[&str] = &["ns", "us", "ms", "s", "B", "KiB", "MiB", "GiB"];

/// A line with every number, unit and hash as `#`, and one space where there are several.
fn pattern(line: &str) -> String {
    let mut text = String::new();
    for word in line.split_whitespace().map(word) {
        if text.ends_with('#') && UNITS.contains(&word.as_str()) {
            continue;
        }
        // Digits come in groups: `34 447` is one number.
        let joined = text.ends_with('#') && word.starts_with('#');
        text.push_str(if joined || text.is_empty() { "" } else { " " });
        text.push_str(if joined { &word[1..] } else { &word });
    }
    text
}

fn word(word: &str) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let hash = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let length = if hash >= HASH { hash } else { number };
        if first.is_ascii_hexdigit() && length > 0 {
            // A dot behind a number ends a sentence.
            let ends = rest[..length].ends_with('.') && length == rest.len();
            text.push_str(if ends { "#." } else { "#" });
            rest = &rest[length..];
        } else {
            text.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    text
}

#[test]
fn numbers_count_as_equal() {
    let printed = "header\nspeed         1 234 tokens/s\nhash 0123456789abcdef\nin 2 ms\nend at 3.\n";
    let shown = "speed 34 447 tokens/s\n...\nhash ffffffffffffffff\nin 1.5 s\nend at 17.";
    assert_eq!(compare(shown, printed), Ok(vec![("ffffffffffffffff", "0123456789abcdef")]));
    assert_eq!(compare("speed 34 447 steps/s", printed), Err("speed 34 447 steps/s"));
    assert_eq!(compare("end at 1.\nheader", printed), Err("header"), "the order counts");
    assert_eq!(compare("speed 5 ...", printed), Ok(vec![]));
}
