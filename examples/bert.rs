//! BERT learns to fill in masked words of sentences that follow a rule: `the cat sees the dog`, `the dogs see the cats`.

use phalanx::models::zoo::{BertConfig, ZooConfig};
use phalanx::nn::{Args, IGNORED, Training};

const WORDS: [&str; 12] =
    ["[PAD]", "the", "cat", "cats", "dog", "dogs", "sees", "see", "hears", "hear", ".", "[MASK]"];
const MASK: usize = 11;

/// A sentence as ids: its subject is singular or plural, and the verb agrees.
fn sentence(number: usize) -> [i64; 6] {
    let many = number % 2;
    let (subject, verb, object) = (2 + 2 * (number / 2 % 2), 6 + 2 * (number / 4 % 2), 2 + number / 8 % 4);
    [1, (subject + many) as i64, (verb + many) as i64, 1, object as i64, 10]
}

fn main() -> phalanx::Result<()> {
    let nano = BertConfig::preset("nano").expect("a size");
    let bert = BertConfig { vocab: WORDS.len(), context: 6, ..nano };
    let mut run = Training::new(&Args::parse(), |net| bert.loss(net)).batch(32).adamw(3e-3, 0.01).start()?;
    for step in 0..60 {
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for row in 0..run.batch() {
            let words = sentence(7 * row + 13 * step);
            // The verb is hidden: whether it is plural is told by the word before it.
            for (at, word) in words.into_iter().enumerate() {
                tokens.push(if at == 2 { MASK as i64 } else { word });
                targets.push(if at == 2 { word } else { IGNORED });
            }
        }
        let step = run.step((("tokens", &tokens), ("targets", &targets)))?;
        if step.number % 20 == 0 {
            println!("{step}");
        }
    }
    Ok(())
}
