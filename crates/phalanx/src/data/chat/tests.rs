//! Templates give the texts of transformers, and answers are found in them.

use std::fs;
use std::path::Path;

use super::*;

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<ChatMessage>,
    add_generation_prompt: bool,
    text: String,
}

/// What `apply_chat_template` of transformers 5.23 gives for these templates: `chatml` and `llama3` are those of published
/// models, the other two are here.
fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("transformers.json")).unwrap()
}

fn template(name: &str) -> ChatTemplate {
    let source = match name {
        "mistral" => include_str!("mistral.jinja").into(),
        "qwen3" => include_str!("qwen3.jinja").into(),
        name => ChatTemplate::source_of(name).unwrap(),
    };
    ChatTemplate::new(name.into(), source, "<s>".into(), "</s>".into()).unwrap()
}

#[test]
fn texts_are_those_of_transformers() {
    for case in cases() {
        let text = template(&case.template).render(&case.messages, case.add_generation_prompt).unwrap();
        assert_eq!(text, case.text, "{}", case.template);
    }
}

#[test]
fn answers_end_with_what_ends_a_message() {
    let messages = &cases()[0].messages;
    let answers = |name: &str| {
        let found = template(name).conversation(messages).unwrap();
        found.answers.iter().map(|answer| found.text[answer.clone()].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(answers("chatml"), ["4 & no more\n<|im_end|>\n", "Yes é.<|im_end|>\n"]);
    assert_eq!(answers("llama3"), ["4 & no more<|eot_id|>", "Yes é.<|eot_id|>"]);
    assert_eq!(answers("mistral"), [" 4 & no more</s>\n", " Yes é.</s>\n"]);
    assert_eq!(answers("plain"), [" 4 & no more\n</s>\n", " Yes é.</s>\n"]);
    let last = "<think>\n\n</think>\n\nYes é.<|im_end|>\n";
    assert_eq!(answers("qwen3"), ["4 & no more\n<|im_end|>\n", last], "only the last one has a thought");
}

#[test]
fn a_template_that_hides_answers_or_fails_is_named() {
    let new = |source: &str| ChatTemplate::new("t".into(), source.into(), String::new(), String::new());
    let messages = [ChatMessage::new("user", "a"), ChatMessage::new("assistant", "b")];
    let message = |source: &str| new(source).unwrap().conversation(&messages).unwrap_err().to_string();
    let error = message("{{ messages | length }}{{ messages[0].content }}");
    assert!(error.contains("changes what stands before message 2"), "{error}");
    let error = message("{{ raise_exception('no ' + messages[0].role) }}");
    assert_eq!(error, "the chat template of t fails: line 1: no user");
    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let error = message(loops);
    assert!(error.starts_with("the chat template of t fails: line 1: "), "{error}");
    let error = new("a\n{% for %}").unwrap_err().to_string();
    assert!(error.starts_with("the chat template of t fails: line 2: "), "{error}");
}

/// A tokenizer that knows one special token.
fn tokenizer_with(dir: &Path, token: &str) -> (PathBuf, Tokenizer) {
    let text = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
        "pre_tokenizer":{{"type":"Whitespace"}},"post_processor":null,"decoder":null,
        "model":{{"type":"WordLevel","vocab":{{"<unk>":0,"{token}":1}},"unk_token":"<unk>"}}}}"#
    );
    let path = dir.join("tokenizer.json");
    fs::write(&path, text).unwrap();
    let tokenizer = Tokenizer::open(&path).unwrap();
    (path, tokenizer)
}

#[test]
fn the_template_is_the_one_asked_for_or_beside_the_tokenizer_or_known_by_its_tokens() {
    let dir = std::env::temp_dir().join(format!("phalanx-chat-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (path, tokenizer) = tokenizer_with(&dir, "<|im_start|>");
    let name = |choice: Option<&str>| {
        let chosen = ChatTemplate::choose(choice, Some(&path), &tokenizer).unwrap();
        Path::new(chosen.name()).file_name().unwrap().to_str().unwrap().to_string()
    };
    assert_eq!((name(None), name(Some("llama3"))), ("chatml".into(), "llama3".into()));
    let config = r#"{"eos_token": {"content": "</s>"}, "chat_template": [{"name": "tools", "template": "no"},
        {"name": "default", "template": "{{ messages[0].content + eos_token }}"}]}"#;
    fs::write(dir.join("tokenizer_config.json"), config).unwrap();
    assert_eq!((name(None), name(Some("plain"))), ("tokenizer_config.json".into(), "plain".into()));
    let chosen = ChatTemplate::choose(None, Some(&path), &tokenizer).unwrap();
    assert_eq!(chosen.render(&[ChatMessage::new("user", "a")], false).unwrap(), "a</s>");
    fs::write(dir.join("chat_template.jinja"), "{{ bos_token }}x").unwrap();
    assert_eq!(name(None), "chat_template.jinja");
    fs::write(dir.join("tokenizer_config.json"), "{").unwrap();
    let error = ChatTemplate::choose(None, Some(&path), &tokenizer).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json is wrong: "), "{error}");
    fs::remove_dir_all(dir).unwrap();
    assert_eq!(ChatTemplate::choose(None, None, &Tokenizer::Bytes).unwrap().name(), "plain");
}

#[test]
fn answers_end_where_the_template_says_so() {
    let ends = |source: &str, eos: &str| {
        let template = ChatTemplate::new(
            "test".into(),
            ChatTemplate::source_of(source).unwrap(),
            String::new(),
            eos.into(),
        );
        template.unwrap().answer_ends().unwrap()
    };
    assert_eq!(ends("chatml", ""), ["<|im_end|>", "<|im_end|>\n<|im_start|>user"]);
    assert_eq!(ends("llama3", ""), ["<|eot_id|>", "<|eot_id|><|start_header_id|>user<|end_header_id|>"]);
    assert_eq!(ends("plain", "</s>"), ["</s>", "</s>\nUser:"]);
    assert_eq!(ends("plain", ""), ["\nUser:"]);
}
