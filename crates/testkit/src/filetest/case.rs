//! Files of cases taken apart and put together again.

/// One case of a file; all line numbers are those of the file, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// The commands with their lines.
    pub(super) commands: Vec<(usize, String)>,
    /// The graph, with blank lines before it so that its lines have the numbers they have in the file.
    pub(super) text: String,
    /// The expected text.
    pub(super) expected: String,
    /// The expected errors with their lines.
    pub(super) errors: Vec<(usize, String)>,
    /// The last line of the graph, after which the expected text belongs.
    last: usize,
}

/// The cases of a file. Whatever stands before the first command is a comment.
pub(super) fn split(file: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (index, line) in file.lines().enumerate() {
        let number = index + 1;
        let line = line.trim_end();
        if let Some(command) = line.strip_prefix(";!") {
            let command = command.split(';').next().unwrap_or_default().trim().to_string();
            match cases.last_mut() {
                Some(case) if case.last == number - 1 && case.text.is_empty() => {
                    case.command(number, command)
                }
                _ => cases.push(Case::start(number, command)),
            }
            continue;
        }
        let Some(case) = cases.last_mut() else { continue };
        match line.strip_prefix(";>") {
            Some(expected) => case.expect(expected),
            None => case.read(number, line),
        }
    }
    cases
}

/// The file with the expected texts of `cases` in place of its own.
pub(super) fn join(file: &str, cases: &[Case]) -> String {
    let mut joined = String::new();
    for (index, line) in file.lines().enumerate() {
        if !line.starts_with(";>") {
            joined += line;
            joined.push('\n');
        }
        for case in cases.iter().filter(|case| case.last == index + 1) {
            for line in case.expected.lines() {
                joined += format!(";> {line}").trim_end();
                joined.push('\n');
            }
        }
    }
    joined
}

impl Case {
    fn start(number: usize, command: String) -> Self {
        let commands = vec![(number, command)];
        Case { commands, text: String::new(), expected: String::new(), errors: Vec::new(), last: number }
    }

    fn command(&mut self, number: usize, command: String) {
        self.commands.push((number, command));
        self.last = number;
    }

    fn expect(&mut self, line: &str) {
        if !self.expected.is_empty() {
            self.expected.push('\n');
        }
        self.expected += line.strip_prefix(' ').unwrap_or(line);
    }

    fn read(&mut self, number: usize, line: &str) {
        for error in line.split(";~").skip(1) {
            let error = error.trim();
            self.errors.push((number, error.strip_prefix("error:").unwrap_or(error).trim().to_string()));
        }
        if line.is_empty() || line.starts_with(';') {
            return;
        }
        let lines = self.text.lines().count();
        self.text += &"\n".repeat(number - 1 - lines);
        self.text += line;
        self.text.push('\n');
        self.last = number;
    }
}
