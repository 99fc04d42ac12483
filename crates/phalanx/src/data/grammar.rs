//! The embedded corpus: sentences such as `Sue sells 54 tiny bells for Max.`, drawn from a small grammar.
//!
//! The grammar is not recursive and no sentence has two derivations (a test parses to check), so a sentence carries
//! exactly the information of the choices that made it. Sentences are independent and end with a mark found nowhere
//! else, so the entropy rate of the text is entropy / expected length of one sentence, both closed sums over the rules.
//! This rate is the least loss any model can reach on long text, which makes the corpus a yardstick: small enough to be
//! learned in a minute, with a known end. (The best loss on windows of 128 bytes is 1 % higher, because a sentence
//! holds a little more in its first half.)

use super::order::mix;

/// The byte that ends a sentence, and nothing else. A line break follows; it carries no information, so a window that
/// begins here starts with one certain byte, which about makes up for the many choices at the start of a sentence.
pub(super) const END: u8 = b'.';

/// Bytes of the corpus.
pub(super) const SIZE: usize = 4 << 20;

/// A rule of the grammar.
enum Rule {
    /// Always this text.
    Text(&'static str),
    /// One of these words, all equally likely.
    Words(&'static [&'static str]),
    /// One of these sequences, by weight.
    Choice(&'static [(u32, &'static [&'static Rule])]),
}

use Rule::{Choice, Text, Words};

static SENTENCE: Rule = Choice(&[(
    1,
    &[&NAME, &SPACE, &VERB, &S, &SPACE, &COUNT, &SPACE, &ADJECTIVES, &NOUN, &S, &RECEIVER, &STOP],
)]);
static NAME: Rule = Words(&[
    "Amy", "Bob", "Cal", "Dan", "Eve", "Fay", "Guy", "Hal", "Ian", "Joe", "Kim", "Lou", "Max", "Ned", "Pat",
    "Ray", "Sue", "Tim", "Val", "Zoe",
]);
static VERB: Rule = Words(&[
    "bake", "count", "draw", "eye", "find", "get", "hide", "keep", "lose", "make", "need", "own", "paint",
    "sell", "take", "want",
]);
static COUNT: Rule = Choice(&[(1, &[&TENS, &ONES])]);
static TENS: Rule = Words(&["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
static ONES: Rule = Words(&["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
static ADJECTIVES: Rule = Choice(&[(1, &[]), (1, &[&ADJECTIVE, &SPACE])]);
static ADJECTIVE: Rule = Words(&["gray", "icy", "new", "odd", "pink", "red", "tiny", "wet"]);
static NOUN: Rule = Words(&[
    "ant", "bell", "cup", "dog", "egg", "fig", "hat", "jar", "key", "lamp", "map", "shoe", "urn", "van",
    "yak",
]);
static RECEIVER: Rule = Choice(&[(1, &[]), (1, &[&FOR, &NAME])]);
static FOR: Rule = Text(" for ");
static SPACE: Rule = Text(" ");
static S: Rule = Text("s");
static STOP: Rule = Text(".\n");

/// What one sentence holds on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Entropy {
    /// Information in nats: the entropy of the choices.
    pub nats: f64,
    /// Length in bytes.
    pub bytes: f64,
}

impl Entropy {
    /// The entropy rate of a text of such sentences.
    pub fn per_byte(self) -> f64 {
        self.nats / self.bytes
    }

    /// Both, one after the other.
    fn then(self, next: Entropy) -> Entropy {
        Entropy { nats: self.nats + next.nats, bytes: self.bytes + next.bytes }
    }

    /// What a choice of probability `p` adds to the whole if it holds `self`.
    fn chosen(self, p: f64) -> Entropy {
        Entropy { nats: p * (self.nats - p.ln()), bytes: p * self.bytes }
    }
}

/// The entropy and expected length of one sentence.
pub(super) fn entropy() -> Entropy {
    SENTENCE.entropy()
}

/// The text of a seed, up to the end of the sentence that crosses this size.
pub(super) fn text(seed: u64, size: usize) -> Vec<u8> {
    let mut random = Random { state: mix(seed) };
    let mut text = Vec::with_capacity(size + 64);
    while text.len() < size {
        SENTENCE.expand(&mut random, &mut text);
    }
    text
}

impl Rule {
    fn entropy(&self) -> Entropy {
        let of_text = |text: &str| Entropy { nats: 0.0, bytes: text.len() as f64 };
        let sum = |parts: &mut dyn Iterator<Item = Entropy>| parts.fold(Entropy::default(), Entropy::then);
        match self {
            Text(text) => of_text(text),
            Words(words) => sum(&mut words.iter().map(|word| of_text(word).chosen(1.0 / words.len() as f64))),
            Choice(choices) => sum(&mut choices.iter().map(|(weight, parts)| {
                let whole = sum(&mut parts.iter().map(|part| part.entropy()));
                whole.chosen(f64::from(*weight) / f64::from(total(choices)))
            })),
        }
    }

    /// Appends a random text of this rule.
    fn expand(&self, random: &mut Random, text: &mut Vec<u8>) {
        match self {
            Text(part) => text.extend_from_slice(part.as_bytes()),
            Words(words) => {
                text.extend_from_slice(words[random.below(words.len() as u32) as usize].as_bytes())
            }
            Choice(choices) => {
                for part in pick(choices, random.below(total(choices))) {
                    part.expand(random, text);
                }
            }
        }
    }
}

fn total(choices: &[(u32, &[&Rule])]) -> u32 {
    choices.iter().map(|(weight, _)| weight).sum()
}

/// The sequence that a number below the total weight falls on.
fn pick<'a>(choices: &[(u32, &'a [&'static Rule])], mut number: u32) -> &'a [&'static Rule] {
    for (weight, parts) in choices {
        if number < *weight {
            return parts;
        }
        number -= weight;
    }
    &[]
}

/// SplitMix64.
struct Random {
    state: u64,
}

impl Random {
    /// A number in `0..limit`.
    fn below(&mut self, limit: u32) -> u32 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let high = mix(self.state) >> 32;
        ((high * u64::from(limit)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Where texts of `rule` that begin at `start` may end, with the probability of all derivations that end there.
    fn parse(rule: &Rule, text: &[u8], start: usize) -> BTreeMap<usize, f64> {
        let word = |word: &str, p: f64| {
            let fits = text[start..].starts_with(word.as_bytes());
            fits.then_some((start + word.len(), p))
        };
        let mut ends = BTreeMap::new();
        let mut add = |(end, p): (usize, f64)| *ends.entry(end).or_default() += p;
        match rule {
            Text(part) => word(part, 1.0).into_iter().for_each(add),
            Words(words) => {
                words.iter().filter_map(|part| word(part, 1.0 / words.len() as f64)).for_each(add);
            }
            Choice(choices) => {
                for (weight, parts) in *choices {
                    let p = f64::from(*weight) / f64::from(total(choices));
                    let mut front = BTreeMap::from([(start, p)]);
                    for part in *parts {
                        let mut next = BTreeMap::new();
                        for (&middle, &before) in &front {
                            for (end, p) in parse(part, text, middle) {
                                *next.entry(end).or_default() += before * p;
                            }
                        }
                        front = next;
                    }
                    front.into_iter().for_each(&mut add);
                }
            }
        }
        ends
    }

    fn sentences(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        text.split_inclusive(|&byte| byte == b'\n')
    }

    #[test]
    fn the_rate_is_the_mean_surprise_of_the_text_itself() {
        let text = text(1, SIZE);
        let (mut nats, mut bytes, mut squares, mut count) = (0.0, 0.0, 0.0, 0.0);
        let rate = entropy().per_byte();
        for sentence in sentences(&text).take(50_000) {
            // The probability of the string, summed over all parses: a second derivation would lower the surprise.
            let surprise = -parse(&SENTENCE, sentence, 0)[&sentence.len()].ln();
            nats += surprise;
            bytes += sentence.len() as f64;
            squares += (surprise - rate * sentence.len() as f64).powi(2);
            count += 1.0;
        }
        let error = f64::sqrt(squares) / bytes;
        assert!((nats / bytes - rate).abs() < 4.0 * error, "{} against {rate} ± {error}", nats / bytes);
        assert!((bytes / count - entropy().bytes).abs() < 0.1);
        assert!((0.6..0.9).contains(&rate), "{rate}");
    }

    #[test]
    fn text_is_a_function_of_the_seed_and_ends_with_a_sentence() {
        let text_1 = text(1, SIZE);
        assert_eq!(text_1, text(1, SIZE));
        assert_ne!(text_1, text(2, SIZE));
        assert!(text_1.len() >= SIZE && text_1.ends_with(b".\n"));
        assert!(sentences(&text_1).all(|sentence| sentence.is_ascii() && sentence.ends_with(b".\n")));
    }

    #[test]
    fn the_lexicon_is_small_and_words_of_a_kind_differ_in_their_first_letter() {
        let kinds = [&NAME, &VERB, &ADJECTIVE, &NOUN];
        let mut size = 0;
        for kind in kinds {
            let Words(words) = kind else { panic!("a kind is a list of words") };
            let first: BTreeSet<u8> = words.iter().map(|word| word.as_bytes()[0]).collect();
            assert_eq!(first.len(), words.len());
            size += words.len();
        }
        assert!((40..=60).contains(&size), "{size}");
    }
}
