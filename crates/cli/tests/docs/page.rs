//! A page of Markdown as a row of code blocks with what its comments say about them.

/// A page.
pub struct Page {
    /// Its blocks, from top to bottom.
    pub blocks: Vec<Block>,
}

/// A fenced block of code.
#[derive(Debug, Default)]
pub struct Block {
    /// File and line, for messages.
    pub place: String,
    /// What stands behind the fence.
    pub language: String,
    /// What is in it.
    pub text: String,
    /// Flags that commands of the block get, each row after the name of its command.
    pub run: Vec<String>,
    /// The exit code that it must have; 0 if absent.
    pub fails: Option<i32>,
    /// The file whose content it is.
    pub file: Option<String>,
    /// Files that the reader is taken to have, by name.
    pub given: Vec<String>,
    /// Why it cannot be run.
    pub not_run: Option<String>,
    /// What the page says it prints: the `text` block behind it.
    pub shown: Option<String>,
}

impl Page {
    /// Finds the blocks of `text`, the content of `path`.
    pub fn parse(path: &str, text: &str) -> Page {
        let mut blocks: Vec<Block> = Vec::new();
        let mut next = Block::default();
        // Whether nothing but empty lines stands between the last block and this line.
        let mut is_behind = false;
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let place = format!("{path}:{}", number + 1);
            if let Some(language) = line.strip_prefix("```") {
                let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
                let content: String = inside.flat_map(|line| [line, "\n"]).collect();
                let block =
                    Block { place, language: language.into(), text: content, ..std::mem::take(&mut next) };
                match blocks.last_mut() {
                    Some(last) if is_behind && block.is_output() && last.language == "sh" => {
                        last.shown = Some(block.text)
                    }
                    _ => blocks.push(block),
                }
                is_behind = true;
            } else if let Some(comment) =
                line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->"))
            {
                next.note(&place, comment);
                is_behind = false;
            } else if !line.trim().is_empty() {
                assert!(next.is_bare(), "{place}: a comment must stand right before its block");
                is_behind = false;
            }
        }
        Page { blocks }
    }
}

impl Block {
    /// Takes in a comment before the block.
    fn note(&mut self, place: &str, comment: &str) {
        let (word, rest) = comment.split_once(": ").unwrap_or((comment, ""));
        match word {
            "run" => self.run.push(rest.into()),
            "fails" => {
                self.fails =
                    Some(rest.parse().unwrap_or_else(|_| panic!("{place}: `{rest}` is no exit code")))
            }
            "file" => self.file = Some(rest.into()),
            "given" => self.given = rest.split_whitespace().map(str::to_string).collect(),
            "not run" => self.not_run = Some(rest.into()),
            _ => panic!(
                "{place}: `{comment}` is not understood; see the head of crates/cli/tests/docs/main.rs"
            ),
        }
    }

    /// Whether no comment says anything about the block.
    fn is_bare(&self) -> bool {
        let Block { run, fails, file, given, not_run, .. } = self;
        run.is_empty() && fails.is_none() && file.is_none() && given.is_empty() && not_run.is_none()
    }

    /// Whether the block may be the output of the one before.
    fn is_output(&self) -> bool {
        self.language == "text" && self.is_bare()
    }
}
