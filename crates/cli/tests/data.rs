//! `phalanx data`, and training on what it shows and writes.
#![allow(clippy::unwrap_used)]

use crate::common::{Dir, SMALL, error, json_lines, stdout};
use serde_json::json;

/// A word-level tokenizer of four words and an end of text.
pub const TOKENIZER: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
    "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
    "model":{"type":"WordLevel","vocab":{"<unk>":0,"a":1,"cat":2,"sat":3,"</s>":4},"unk_token":"<unk>"}}"#;

#[test]
fn text_tokens_and_lines_of_json_train_alike() {
    let dir = Dir::new("data");
    let rules = dir.write("tokenizer.json", TOKENIZER);
    let document = "a cat sat a cat a cat sat sat a ".repeat(40);
    let text = dir.write("a.txt", &document);
    let lines = dir.write("a.jsonl", json!({ "body": document, "id": 7 }).to_string() + "\n");
    let tokens = dir.path("a.bin");
    let written = stdout(&["data", "tokenize", &text, "--tokenizer", &rules, "--out", &tokens]);
    assert_eq!(written, format!("{tokens}: 401 tokens\n"));
    let hash = |data: &str, extra: &[&str]| {
        let fixed = ["train", "--json", "--steps", "3", "--data", data, "--tokenizer", &rules];
        let last = json_lines(&[&fixed[..], extra, SMALL].concat()).pop().unwrap();
        last["summary"]["weights_hash"].as_str().unwrap().to_string()
    };
    let expected = hash(&text, &[]);
    assert_eq!(hash(&tokens, &[]), expected);
    assert_eq!(hash(&lines, &["--data-field", "body"]), expected);
    let missing = ["train", "--data", &lines, "--tokenizer", &rules];
    assert!(error(&missing, 2).contains("a.jsonl:1: there is no field `text`"));
}

#[test]
fn show_tells_how_much_there_is_and_how_it_begins() {
    let dir = Dir::new("data-show");
    let (rules, text) = (dir.write("tokenizer.json", TOKENIZER), dir.write("a.txt", "a cat sat"));
    let shown = &json_lines(&["data", "show", &text, "--tokenizer", &rules, "--head", "2", "--json"])[0];
    assert_eq!(shown["tokens"], 4, "three words and the end of the text");
    assert_eq!((&shown["vocabulary"], &shown["head"]), (&json!(5), &json!([1, 2])));
    assert_eq!(shown["text"], "a cat");
    let shown = stdout(&["data", "show", &text]);
    assert!(shown.contains("tokens      9\n") && shown.contains("\"a cat sat\""), "{shown}");
    let nowhere = dir.path("*.txt.gz");
    assert!(error(&["data", "show", &nowhere], 2).contains("has no text"));
}

#[test]
fn completions_and_manual_pages_know_the_flags() {
    let dir = Dir::new("man");
    assert!(stdout(&["completions", "bash"]).contains("--blocks-feature"));
    assert!(stdout(&["completions", "zsh"]).contains("weight-decay"));
    let pages = dir.path("man1");
    stdout(&["man", &pages]);
    let page = std::fs::read_to_string(format!("{pages}/phalanx-train.1")).unwrap();
    assert!(page.contains("weight") && page.contains("Highest learning rate"), "{}", &page[..400]);
}
