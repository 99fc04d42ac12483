//! A model that keeps keys and values has the scores of whole passes, to the bit.

use phalanx::generate::Decoder;
use phalanx::ir::Precision;
use phalanx::models::{Gpt2Config, LlamaConfig, ModelConfig};
use phalanx::pipeline::Settings;
use phalanx::{Goal, Session};

const CONTEXT: usize = 96;
const VOCAB: usize = 23;

/// A model of each family; Llama with grouped heads.
fn models() -> [ModelConfig; 2] {
    let ModelConfig::Gpt2(gpt2) = ModelConfig::preset("gpt2", "nano").expect("it is one") else { panic!() };
    let ModelConfig::Llama(llama) = ModelConfig::preset("llama", "nano").expect("it is one") else {
        panic!()
    };
    let (layers, heads, width, hidden, vocab, context) = (2, 4, 24, 40, VOCAB, CONTEXT);
    [
        ModelConfig::Gpt2(Gpt2Config { layers, heads, width, hidden, vocab, context, ..gpt2 }),
        ModelConfig::Llama(LlamaConfig {
            layers,
            heads,
            kv_heads: 2,
            head_dim: 6,
            width,
            hidden,
            vocab,
            context,
            ..llama
        }),
    ]
}

fn tokens(count: usize, seed: i64) -> Vec<i64> {
    (0..count as i64).map(|at| (at * at * 7 + at * seed + 3) % VOCAB as i64).collect()
}

/// Whole passes over windows of `time` tokens, with the weights of a seed.
fn whole(model: &ModelConfig, time: usize) -> Session {
    let graph = model.logits_graph(1, time).expect("the sizes fit");
    Session::new(&graph, &Settings::new(Goal::Infer).cores(2)).expect("it compiles")
}

/// The same weights with caches.
fn decoder(model: &ModelConfig, whole: &Session, cores: usize) -> Decoder {
    let mut decoder = Decoder::new(model, CONTEXT, cores, Precision::F32).expect("it compiles");
    for (name, values) in &whole.weights().expect("they can be read") {
        decoder.feed(name, values).expect("it has the parameter");
    }
    decoder
}

/// The scores after each token of a window.
fn rows(session: &mut Session, window: &[i64]) -> Vec<Vec<u32>> {
    session.feed("tokens", &window.to_vec()).expect("it has the input");
    session.run().expect("it runs");
    let logits = session.read("logits").expect("it has the output");
    logits.chunks(VOCAB).map(bits).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_position_has_the_bits_of_a_whole_pass_however_the_text_is_read() {
    for model in models() {
        let family = model.family();
        let mut session = whole(&model, CONTEXT);
        let text = tokens(CONTEXT, 5);
        let want = rows(&mut session, &text);
        let mut one_by_one = decoder(&model, &session, 1);
        for length in 1..=CONTEXT {
            let found = one_by_one.next_logits(&text[..length]).expect("it runs");
            assert_eq!(bits(&found), want[length - 1], "{family}, token {length}");
        }
        for length in [8, 9, 64, 65, 66, 73, CONTEXT] {
            let mut at_once = decoder(&model, &session, 2);
            let found = at_once.next_logits(&text[..length]).expect("it runs");
            assert_eq!(bits(&found), want[length - 1], "{family}, {length} tokens at once");
        }
    }
}

#[test]
fn a_text_of_several_blocks_has_the_bits_of_a_whole_pass() {
    let [_, ModelConfig::Llama(llama)] = models() else { panic!() };
    let context = 1100;
    let model = ModelConfig::Llama(LlamaConfig { layers: 1, context, ..llama });
    let mut session = whole(&model, context);
    let text = tokens(context, 5);
    let want = rows(&mut session, &text);
    let mut decoder = Decoder::new(&model, context, 2, Precision::F32).expect("it compiles");
    for (name, values) in &session.weights().expect("they can be read") {
        decoder.feed(name, values).expect("it has the parameter");
    }
    for length in [40, 45, 60, context] {
        let found = decoder.next_logits(&text[..length]).expect("it runs");
        assert_eq!(bits(&found), want[length - 1], "{length}");
    }
}

#[test]
fn another_text_reads_again_only_what_differs_and_a_window_slides() {
    for model in models() {
        let mut session = whole(&model, CONTEXT);
        let mut decoder = decoder(&model, &session, 1);
        let (first, other) = (tokens(CONTEXT + 3, 5), tokens(CONTEXT + 3, 9));
        let turned = [&first[..40], &other[40..90]].concat();
        for text in [&first[..70], &turned, &first[..20], &other[..5]] {
            let padded = [text, &vec![0; CONTEXT - text.len()]].concat();
            let want = rows(&mut session, &padded)[text.len() - 1].clone();
            assert_eq!(bits(&decoder.next_logits(text).expect("it runs")), want, "{}", text.len());
        }
        for length in CONTEXT..=CONTEXT + 3 {
            let want = rows(&mut session, &first[length - CONTEXT..length])[CONTEXT - 1].clone();
            let found = decoder.next_logits(&first[..length]).expect("it runs");
            assert_eq!(bits(&found), want, "{length} tokens, of which the last {CONTEXT} are seen");
        }
    }
}
