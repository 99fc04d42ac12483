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
    assert_eq!((&shown["documents"], &shown["prompt_tokens"]), (&json!(1), &json!(0)));
    let shown = stdout(&["data", "show", &text]);
    assert!(shown.contains("tokens      9\n") && shown.contains("\"a cat sat\""), "{shown}");
    let nowhere = dir.path("*.txt.gz");
    assert!(error(&["data", "show", &nowhere], 2).contains("has no text"));
}

/// Lines of a question and its answer.
fn chats() -> String {
    let line = |number: usize| {
        let question = json!({ "role": "user", "content": format!("What is {number}?") });
        let answer = json!({ "role": "assistant", "content": "A number." });
        json!({ "messages": [question, answer] }).to_string() + "\n"
    };
    (0..40).map(line).collect()
}

#[test]
fn show_tells_prompts_and_shares_of_sources() {
    let dir = Dir::new("data-mixed");
    let (chats, text) = (dir.write("a.jsonl", chats()), dir.write("b.txt", "text ".repeat(20)));
    let both = format!("{chats}=3; {text}=1");
    let shown =
        &json_lines(&["data", "show", &both, "--chat-template", "chatml", "--json", "--head", "0"])[0];
    // `<|im_start|>user\nWhat is 7?<|im_end|>\n<|im_start|>assistant\n` has 60 bytes, `A number.<|im_end|>\n` 20.
    let (prompts, answers) = (30 * 61 + 10 * 60, 40 * 20);
    assert_eq!(shown["prompt_tokens"], prompts);
    assert_eq!((&shown["documents"], &shown["tokens"]), (&json!(41), &json!(prompts + answers + 100)));
    let sources = json!([
        { "data": chats, "tokens": prompts + answers, "share": 0.75 }, { "data": text, "tokens": 100, "share": 0.25 }
    ]);
    assert_eq!(shown["sources"], sources);
    let shown = stdout(&["data", "show", &both, "--chat-template", "chatml"]);
    assert!(shown.contains(&format!("   75.0 %   {chats}: ")), "{shown}");
    assert!(
        shown.contains("documents   41\n") && shown.contains("prompts     73.0 % of the tokens"),
        "{shown}"
    );
    let error = error(&["data", "show", &text, "--chat-template", "plain"], 2);
    assert!(error.contains("`chat_template` is set, but"), "{error}");
}

#[test]
fn answers_are_trained_on_alone_and_the_template_is_saved() {
    let dir = Dir::new("data-chat");
    let (data, out) = (dir.write("a.jsonl", chats()), dir.path("out"));
    let fixed =
        ["train", "--json", "--steps", "2", "--data", &data, "--chat-template", "llama3", "--mask-prompt"];
    let cache = ["--data-cache", &dir.path("cache"), "--overlap", "off"];
    let hash = |extra: &[&str]| {
        let last = json_lines(&[&fixed[..], &cache, extra, SMALL].concat()).pop().unwrap();
        last["summary"]["weights_hash"].as_str().unwrap().to_string()
    };
    let alone = hash(&["--save", &out]);
    assert_eq!(hash(&["--plan", "dp2", "--devices", "2", "--accumulate", "2"]), alone);
    let saved = std::fs::read_to_string(format!("{out}/chat_template.jinja")).unwrap();
    assert!(saved.contains("<|start_header_id|>"), "{saved}");
    let text = dir.write("b.txt", "nothing to answer ".repeat(20));
    let refused = error(&["train", "--data", &text, "--mask-prompt"], 2);
    assert!(refused.contains("`mask_prompt` is set, but") && refused.contains("has no prompts"), "{refused}");
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
