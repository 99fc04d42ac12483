//! Patterns for names: `*` is any text (dots too), `?` one character, `[0-9a-f]` one of a set; everything else is itself.
//!
//! Own, because no dependency of the project has it: matching is forty lines, and the same tokens measure how far a
//! pattern is from a name, for suggestions.

/// A pattern that can be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Vec<Token>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Any,
    One,
    Set(Vec<(char, char)>),
    Char(char),
}

impl Token {
    fn accepts(&self, c: char) -> bool {
        match self {
            Token::Any | Token::One => true,
            Token::Set(runs) => runs.iter().any(|&(first, last)| (first..=last).contains(&c)),
            Token::Char(own) => *own == c,
        }
    }
}

impl Glob {
    /// Reads a pattern; `None` if a set is not closed or empty.
    pub fn new(pattern: &str) -> Option<Glob> {
        let mut chars = pattern.chars();
        let mut tokens = Vec::new();
        while let Some(c) = chars.next() {
            tokens.push(match c {
                '*' => Token::Any,
                '?' => Token::One,
                '[' => Token::Set(set(&mut chars)?),
                c => Token::Char(c),
            });
        }
        Some(Glob(tokens))
    }

    /// Whether the whole name fits.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut token, mut at) = (0, 0);
        // Where the last `*` stands and how much of the name it has taken: all there is to try again.
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.0.get(token) {
                Some(Token::Any) => {
                    star = Some((token, at));
                    token += 1;
                }
                Some(other) if other.accepts(name[at]) => (token, at) = (token + 1, at + 1),
                _ => {
                    let Some((place, taken)) = star else { return false };
                    star = Some((place, taken + 1));
                    (token, at) = (place + 1, taken + 1);
                }
            }
        }
        self.0[token..].iter().all(|token| *token == Token::Any)
    }

    /// How many characters must be added, removed or changed until the name fits.
    pub fn distance(&self, name: &str) -> usize {
        let name: Vec<char> = name.chars().collect();
        let mut row: Vec<usize> = (0..=name.len()).collect();
        for token in &self.0 {
            let free = *token == Token::Any;
            let cost = usize::from(!free);
            let mut next = vec![row[0] + cost];
            for (at, &c) in name.iter().enumerate() {
                let change = row[at] + usize::from(!token.accepts(c));
                next.push(change.min(row[at + 1] + cost).min(next[at] + cost));
            }
            row = next;
        }
        row[name.len()]
    }

    /// Up to three names that are nearest to the pattern, for a message.
    pub fn closest<'a>(&self, names: impl Iterator<Item = &'a str>) -> String {
        let mut names: Vec<_> = names.map(|name| (self.distance(name), name)).collect();
        // The sort is stable: equally close names stay in their order.
        names.sort_by_key(|(distance, _)| *distance);
        let close: Vec<_> = names.iter().take(3).map(|(_, name)| format!("`{name}`")).collect();
        close.join(", ")
    }
}

/// The rest of a set such as `0-9_]`.
fn set(chars: &mut std::str::Chars<'_>) -> Option<Vec<(char, char)>> {
    let text = chars.as_str();
    let (inside, rest) = text.split_once(']')?;
    *chars = rest.chars();
    let inside: Vec<char> = inside.chars().collect();
    let (mut at, mut runs) = (0, Vec::new());
    while at < inside.len() {
        let run = inside.get(at + 1) == Some(&'-') && at + 2 < inside.len();
        let last = if run { inside[at + 2] } else { inside[at] };
        runs.push((inside[at], last));
        at += if run { 3 } else { 1 };
    }
    (!runs.is_empty()).then_some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        let fits = |pattern: &str, name: &str| Glob::new(pattern).expect("a pattern").matches(name);
        assert!(fits("h.*.attn", "h.12.attn") && fits("*", "") && fits("**a*", "bca"));
        assert!(fits("h.[0-35].x", "h.5.x") && fits("h.?.x", "h.9.x") && fits("[a-]b", "-b"));
        assert!(!fits("h.[0-35].x", "h.4.x") && !fits("h.?.x", "h.10.x") && !fits("h", "h.1"));
        assert!(fits("*.a*.a", "x.ab.b.a") && !fits("*.a*.a", "x.a"));
        assert_eq!([Glob::new("a[b"), Glob::new("a[]")], [None, None]);
    }

    #[test]
    fn distances_count_changes() {
        let distance = |pattern: &str, name: &str| Glob::new(pattern).expect("a pattern").distance(name);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("h.*.atn.q", "h.10.attn.q"), 1);
        assert_eq!(distance("*", "anything"), 0);
    }
}
