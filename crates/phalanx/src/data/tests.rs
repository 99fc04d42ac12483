//! Batches depend on the step alone, cover the corpus once an epoch, and bad files are refused by name.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::*;

/// A directory that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("phalanx-data-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn batch(data: &Dataset, step: u64, batch: usize, context: usize) -> (Vec<i64>, Vec<i64>) {
    let (mut tokens, mut targets) = (vec![-1; batch * context], vec![-1; batch * context]);
    data.batch(step, batch, context, &mut tokens, &mut targets);
    (tokens, targets)
}

#[test]
fn an_epoch_sees_every_window_once_and_the_next_in_another_order() {
    let scratch = Scratch::new("epoch");
    let text: Vec<u8> = (0..103).collect();
    let data = Dataset::open_text(&scratch.file("a.txt", &text), 5).unwrap();
    assert_eq!((data.vocab(), data.tokens(), data.windows(4)), (256, 103, 20));
    let epoch = |number: u64| -> Vec<i64> {
        let steps = (0..5).map(|step| batch(&data, number * 5 + step, 4, 4));
        let firsts = steps.flat_map(|(tokens, targets)| {
            assert!(tokens.iter().zip(&targets).all(|(token, target)| token + 1 == *target));
            tokens.into_iter().step_by(4).collect::<Vec<_>>()
        });
        firsts.collect()
    };
    let wanted: BTreeSet<i64> = (0..20).map(|window| window * 5).collect();
    assert_eq!(epoch(0).into_iter().collect::<BTreeSet<_>>(), wanted);
    assert_eq!(epoch(1).into_iter().collect::<BTreeSet<_>>(), wanted);
    assert_ne!(epoch(0), epoch(1));
}

#[test]
fn the_row_of_samples_does_not_depend_on_the_batch_size() {
    let data = Dataset::grammar(3);
    let (whole, _) = batch(&data, 1, 8, 32);
    let (halves, _): (Vec<_>, Vec<_>) = (2..4).map(|step| batch(&data, step, 4, 32)).unzip();
    assert_eq!(whole, halves.concat());
}

#[test]
fn grammar_windows_begin_between_sentences() {
    let data = Dataset::grammar(3);
    let (tokens, targets) = batch(&data, 0, 64, 128);
    assert!(tokens.chunks(128).all(|window| window[..2] == [46, 10]));
    assert!(targets.chunks(128).all(|window| (window[1] as u8).is_ascii_uppercase()));
    assert_eq!((data.name(), data.vocab()), ("grammar", 256));
    assert!(data.check(128).is_ok() && data.entropy().is_some());
    let sample = data.tokenizer().decode(&targets[..128]).unwrap();
    assert!(sample.contains(".\n"), "{sample}");
}

#[test]
fn a_directory_is_its_files_in_the_order_of_their_paths() {
    let scratch = Scratch::new("directory");
    scratch.file("b.txt", b"cd");
    scratch.file("a/z.txt", b"ab");
    scratch.file("c.txt", b"");
    scratch.file("d.txt", "é".as_bytes());
    let data = Dataset::open_text(&scratch.0, 0).unwrap();
    let (tokens, targets) = batch(&data, 0, 1, 5);
    assert_eq!(data.tokenizer().decode(&tokens).unwrap(), "abcd\u{fffd}");
    assert_eq!(targets[4], 0xA9);
}

#[test]
fn bad_files_are_refused_by_name() {
    let scratch = Scratch::new("refused");
    let text = |path: &Path| Dataset::open_text(path, 0).unwrap_err().to_string();
    let missing = scratch.0.join("missing.txt");
    assert!(text(&missing).starts_with(&format!("cannot read {}", missing.display())));
    let empty = scratch.file("empty.txt", b"");
    assert!(text(&empty).starts_with(&format!("{} has no text", empty.display())));
    let latin = scratch.file("latin.txt", b"caf\xe9 noir");
    assert!(text(&latin).contains("latin.txt is not UTF-8 at byte 3"));
    assert!(text(&scratch.0).contains("latin.txt is not UTF-8 at byte 3"));
    let short = Dataset::open_text(&scratch.file("short.txt", b"12345678"), 0).unwrap();
    assert!(short.check(7).is_ok());
    let error = short.check(8).unwrap_err().to_string();
    assert!(error.contains("short.txt has 8 tokens but a context of 8 needs 9"), "{error}");
    let (tokens, _) = batch(&short, 0, 1, 12);
    assert_eq!(short.tokenizer().decode(&tokens).unwrap(), "123456781234", "too short a corpus is repeated");
}

/// A word-level tokenizer of four words.
const TOKENIZER: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
    "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
    "model":{"type":"WordLevel","vocab":{"<unk>":0,"a":1,"cat":2,"sat":9},"unk_token":"<unk>"}}"#;

#[test]
fn a_tokenizer_file_encodes_the_corpus_and_decodes_samples() {
    let scratch = Scratch::new("tokenizer");
    let rules = scratch.file("tokenizer.json", TOKENIZER.as_bytes());
    let corpus = scratch.file("cat.txt", b"a cat sat\na dog sat");
    let open = |path: &Path, rules: &Path| {
        Dataset::open(&DataSource { tokenizer: Some(rules), ..DataSource::new(path) }, 0, &mut |_, _| ())
    };
    let data = open(&corpus, &rules).unwrap();
    assert_eq!((data.vocab(), data.tokens()), (10, 6));
    assert_eq!(batch(&data, 0, 1, 5), (vec![1, 2, 9, 1, 0], vec![2, 9, 1, 0, 9]));
    assert_eq!(data.tokenizer().decode(&[1, 2, 9]).unwrap(), "a cat sat");
    assert_eq!(data.tokenizer().encode("cat a").unwrap(), [2, 1]);
    let error = data.tokenizer().decode(&[-1]).unwrap_err().to_string();
    assert_eq!(error, "-1 is not a token; tokens are 0 to 9");
    let error = open(&corpus, &corpus).unwrap_err().to_string();
    assert!(error.contains("cannot load the tokenizer") && error.contains("cat.txt"), "{error}");
}

fn held_batch(data: &Dataset, number: u64, batch: usize, context: usize) -> (Vec<i64>, Vec<i64>) {
    let (mut tokens, mut targets) = (vec![-1; batch * context], vec![-1; batch * context]);
    data.held_batch(number, batch, context, &mut tokens, &mut targets);
    (tokens, targets)
}

#[test]
fn the_last_windows_of_a_file_are_held_back_and_never_trained_on() {
    let scratch = Scratch::new("held");
    let text: Vec<u8> = (0..103).collect();
    let mut data = Dataset::open_text(&scratch.file("a.txt", &text), 5).unwrap();
    data.hold_back(0.12);
    assert_eq!((data.windows(4), data.held_windows(4)), (17, 3));
    let firsts = |tokens: Vec<i64>| tokens.into_iter().step_by(4).collect::<BTreeSet<_>>();
    let epoch = firsts(batch(&data, 0, 17, 4).0);
    assert_eq!(epoch, (0..17).map(|window| window * 5).collect());
    let (tokens, targets) = held_batch(&data, 0, 3, 4);
    assert!(tokens.iter().zip(&targets).all(|(token, target)| token + 1 == *target));
    assert_eq!(firsts(tokens.clone()), BTreeSet::from([85, 90, 95]));
    assert_eq!(held_batch(&data, 1, 3, 4).0, tokens, "they come round in the same order");
    let short = scratch.file("b.txt", b"0123456789");
    let mut data = Dataset::open_text(&short, 0).unwrap();
    data.hold_back(0.5);
    assert!(data.check(4).is_ok());
    let error = data.check(6).unwrap_err().to_string();
    assert!(error.contains("b.txt to train on, whose text is cut into 1;"), "{error}");
}

#[test]
fn the_grammar_holds_other_sentences_and_trains_on_the_same() {
    let (plain, mut data) = (Dataset::grammar(3), Dataset::grammar(3));
    data.hold_back(0.05);
    assert_eq!(batch(&data, 9, 16, 64), batch(&plain, 9, 16, 64));
    assert_eq!(data.windows(64), plain.windows(64));
    let share = data.held_windows(64) as f64 / data.windows(64) as f64;
    assert!((share - 0.05).abs() < 1e-3, "{share}");
    let (tokens, _) = held_batch(&data, 0, 64, 128);
    assert!(tokens.chunks(128).all(|window| window[..2] == [46, 10]), "windows begin between sentences");
    let line = |tokens: &[i64]| plain.tokenizer().decode(&tokens[2..40]).unwrap();
    let corpus = plain.all().next().unwrap().text();
    let known = tokens.chunks(128).filter(|window| corpus.contains(&line(window))).count();
    assert_eq!(known, 0, "windows of 38 bytes are not found in the text that is trained on");
}

/// All tokens of files, in order.
fn tokens_of(source: &DataSource<'_>) -> Result<Vec<i64>, String> {
    let data = Dataset::open(source, 0, &mut |_, _| ()).map_err(|error| error.to_string())?;
    Ok(data.head(usize::MAX))
}

/// [`TOKENIZER`] with a token that ends a text.
fn ending_tokenizer() -> String {
    TOKENIZER.replace(r#""sat":9"#, r#""sat":9,"</s>":5"#)
}

#[test]
fn an_end_of_text_stands_after_each_document() {
    let scratch = Scratch::new("documents");
    let rules = scratch.file("tokenizer.json", ending_tokenizer().as_bytes());
    scratch.file("texts/a.txt", b"a cat");
    scratch.file("texts/b.jsonl", b"{\"text\": \"cat sat\", \"id\": 1}\n\n{\"text\": \"a\"}\n");
    let dir = scratch.0.join("texts");
    let source = DataSource { tokenizer: Some(&rules), ..DataSource::new(&dir) };
    assert_eq!(tokens_of(&source), Ok(vec![1, 2, 5, 2, 9, 5, 1, 5]));
    let lines = scratch.0.join("texts/*.jsonl");
    assert_eq!(tokens_of(&DataSource { path: &lines, ..source }), Ok(vec![2, 9, 5, 1, 5]), "a pattern");
    let bytes = tokens_of(&DataSource::new(&lines)).unwrap();
    assert_eq!(Tokenizer::Bytes.decode(&bytes).unwrap(), "cat sat\na\n");
    let error = tokens_of(&DataSource { field: "body", path: &lines, ..source }).unwrap_err();
    assert!(error.contains("b.jsonl:1: there is no field `body`"), "{error}");
    let error = tokens_of(&DataSource { field: "id", path: &lines, ..source }).unwrap_err();
    assert!(error.contains("b.jsonl:1: `id` is 1; it must be a string"), "{error}");
    let none = scratch.0.join("*.md");
    assert!(tokens_of(&DataSource::new(&none)).unwrap_err().contains("has no text"));
}

#[test]
fn encoded_text_is_kept_and_found_again_by_its_content() {
    let scratch = Scratch::new("cache");
    let rules = scratch.file("tokenizer.json", ending_tokenizer().as_bytes());
    let (text, cache) = (scratch.file("a.txt", b"a cat sat"), scratch.0.join("cache"));
    let source = DataSource { tokenizer: Some(&rules), cache: Some(&cache), ..DataSource::new(&text) };
    let files = || {
        let names = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_some_and(|end| end == "bin")).collect::<Vec<_>>()
    };
    assert_eq!(tokens_of(&source), Ok(vec![1, 2, 9, 5]));
    let [kept] = &files()[..] else { panic!("one file") };
    assert_eq!(tokens_of(&DataSource::new(kept)), Ok(vec![1, 2, 9, 5]), "it is a file of tokens");
    let mut calls = 0;
    Dataset::open(&source, 0, &mut |_, _| calls += 1).unwrap();
    assert_eq!(calls, 0, "nothing is encoded the second time");
    let copy = scratch.file("elsewhere.txt", b"a cat sat");
    tokens_of(&DataSource { path: &copy, ..source }).unwrap();
    assert_eq!(files().len(), 1, "the same text under another name");
    scratch.file("a.txt", b"a cat");
    assert_eq!(tokens_of(&source), Ok(vec![1, 2, 5]), "text that changed is encoded again");
    scratch.file("tokenizer.json", TOKENIZER.as_bytes());
    assert_eq!(tokens_of(&source), Ok(vec![1, 2]), "and so it is with another tokenizer");
    assert_eq!(files().len(), 3);
}

#[test]
fn a_cache_that_cannot_be_written_costs_time_only() {
    let scratch = Scratch::new("no-cache");
    let rules = scratch.file("tokenizer.json", TOKENIZER.as_bytes());
    let (text, file) = (scratch.file("a.txt", b"a cat sat"), scratch.file("file", b""));
    let source = DataSource { tokenizer: Some(&rules), cache: Some(&file), ..DataSource::new(&text) };
    let data = Dataset::open(&source, 0, &mut |_, _| ()).unwrap();
    assert_eq!(data.tokens(), 3);
    assert!(data.note().unwrap().contains("tokens are not kept"), "{:?}", data.note());
}

#[test]
fn files_of_tokens_need_no_text() {
    let scratch = Scratch::new("tokens");
    let rules = scratch.file("tokenizer.json", TOKENIZER.as_bytes());
    let tokens = scratch.file("data/train.bin", &[1, 0, 2, 0, 9, 0]);
    let data = Dataset::open(&DataSource::new(&tokens), 0, &mut |_, _| ()).unwrap();
    assert_eq!((data.tokens(), data.vocab()), (3, 10));
    assert!(data.tokenizer().decode(&[1]).unwrap_err().to_string().contains("name the tokenizer.json"));
    let named = DataSource { tokenizer: Some(&rules), ..DataSource::new(&tokens) };
    assert_eq!(tokens_of(&named), Ok(vec![1, 2, 9]));
    scratch.file("data/train.bin", &[1, 0, 2, 1]);
    let error = tokens_of(&named).unwrap_err();
    assert!(error.contains("train.bin has token 258, but the tokenizer has 10 tokens"), "{error}");
    scratch.file("data/a.txt", b"text");
    let both = scratch.0.join("data");
    let error = tokens_of(&DataSource::new(&both)).unwrap_err();
    assert!(error.contains("train.bin has tokens up to 258"), "{error}");
}

#[test]
fn tokenize_writes_what_opening_reads() {
    let scratch = Scratch::new("tokenize");
    let rules = scratch.file("tokenizer.json", ending_tokenizer().as_bytes());
    let (text, out) = (scratch.file("a.txt", b"a cat sat"), scratch.0.join("out.bin"));
    let source = DataSource { tokenizer: Some(&rules), ..DataSource::new(&text) };
    let mut seen = Vec::new();
    assert_eq!(source.tokenize(&out, &mut |done, total| seen.push((done, total))).unwrap(), 4);
    assert_eq!(seen, [(9, 9)]);
    assert_eq!(tokens_of(&DataSource { path: &out, ..source }), tokens_of(&source));
    let error = DataSource::new(&out).tokenize(&text, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("it has tokens already"), "{error}");
    assert_eq!(fs::read(&text).unwrap(), b"a cat sat", "nothing is lost");
}

#[test]
fn documents_are_held_back_whole_where_one_begins_about_there() {
    let scratch = Scratch::new("held-documents");
    // Documents of 50 tokens, each of one letter and a line end.
    let line = |letter: char| format!("{}\n", serde_json::json!({ "text": letter.to_string().repeat(49) }));
    let lines: String = ('a'..='t').map(line).collect();
    let open = |path: &Path, share: f64| {
        let mut data = Dataset::open_text(path, 5).unwrap();
        data.hold_back(share);
        data.check(9).unwrap();
        data
    };
    let path = scratch.file("a.jsonl", lines.as_bytes());
    let data = open(&path, 0.12);
    assert_eq!((data.documents(), data.tokens()), (20, 1000));
    assert_eq!((data.windows(9), data.held_windows(9), data.holds_documents(9)), (90, 10, true));
    let letters = |tokens: Vec<i64>| tokens.into_iter().filter(|&token| token != 10).collect::<BTreeSet<_>>();
    assert_eq!(letters(held_batch(&data, 0, 10, 9).0), BTreeSet::from([115, 116]), "s and t");
    assert_eq!(letters(batch(&data, 0, 90, 9).0), (97..115).collect(), "a to r");
    let one = scratch.file("one/a.txt", &[b'x'; 1000]);
    assert_eq!((open(&one, 0.12).held_windows(9), open(&one, 0.12).holds_documents(9)), (12, false));
    scratch.file("one/b.txt", &[b'y'; 1000]);
    let two = open(&scratch.0.join("one"), 0.12);
    assert_eq!((two.held_windows(9), two.holds_documents(9)), (24, false), "half of the data is too much");
    let half = open(&scratch.0.join("one"), 0.4);
    assert_eq!((half.windows(9), half.held_windows(9)), (100, 100));
    assert_eq!(letters(held_batch(&half, 0, 100, 9).0), BTreeSet::from([121]));
}

/// The letters that samples begin with, of several steps.
fn first_letters(data: &Dataset, steps: std::ops::Range<u64>) -> Vec<i64> {
    steps.flat_map(|step| batch(data, step, 8, 4).0.into_iter().step_by(4)).collect()
}

#[test]
fn sources_are_mixed_by_weight_and_each_sees_its_windows_once_an_epoch() {
    let scratch = Scratch::new("mixture");
    let text: Vec<u8> = (0..100).collect();
    let a = scratch.file("a.txt", &text);
    let b = scratch.file("b/b.txt", &text.iter().map(|byte| byte + 20).collect::<Vec<_>>());
    scratch.file("b/c.txt", &[120; 5]);
    let mixed = |weights: [&str; 2]| {
        let path = format!("{}{} ; {}/b/*.txt{}", a.display(), weights[0], scratch.0.display(), weights[1]);
        Dataset::open_text(Path::new(&path), 5)
    };
    let data = mixed(["=3", "=1"]).unwrap();
    assert_eq!((data.tokens(), data.documents(), data.windows(4)), (205, 3, 41));
    let shares: Vec<_> = data.mixed(4).iter().map(|one| (one.share, one.windows)).collect();
    assert_eq!(shares, [(0.75, 20), (0.25, 21)]);
    let only_b = |token: &i64| *token >= 100;
    let firsts = first_letters(&data, 0..256);
    let of_b = firsts.iter().filter(|token| only_b(token)).count();
    // A window of `b` in five begins at 100 or above; a quarter of 2048 samples is from `b`.
    assert!((of_b as f64 - 512.0 * 5.0 / 21.0).abs() < 12.0, "{of_b}");
    assert_eq!(first_letters(&data, 100..120), firsts[800..960], "a step depends on nothing before it");
    let even = mixed(["", ""]).unwrap();
    let shares: Vec<_> = even.mixed(4).iter().map(|one| one.share).collect();
    assert_eq!(shares, [100.0 / 205.0, 105.0 / 205.0], "without weights by size");
    let error = mixed(["=1", ""]).unwrap_err().to_string();
    assert!(error.contains("has no weight, but others have; write PATH=WEIGHT;PATH=WEIGHT"), "{error}");
    let alone = Dataset::open_text(&b, 5).unwrap();
    let weighted = Dataset::open_text(Path::new(&format!("{}=2", b.display())), 5).unwrap();
    assert_eq!(
        first_letters(&weighted, 0..9),
        first_letters(&alone, 0..9),
        "one source is as without weight"
    );
}

#[test]
fn prompts_are_not_trained_on_if_that_is_asked_for() {
    let scratch = Scratch::new("prompts");
    let lines = [
        r#"{"prompt": "2+2=", "completion": "4"}"#,
        r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#,
        r#"{"instruction": "add", "input": "1 1", "output": "2"}"#,
        r#"{"text": "plain"}"#,
    ];
    let path = scratch.file("a.jsonl", lines.join("\n").as_bytes());
    let cache = scratch.0.join("cache");
    let wanted = "2+2=4\nUser: hi\nAssistant: ho\nUser: add\n\n1 1\nAssistant: 2\nplain\n";
    let trained = "____4\n___________________ ho\n_________________________ 2\nplain\n";
    for cache in [None, Some(cache.as_path()), Some(cache.as_path())] {
        let source = DataSource { mask_prompt: true, cache, ..DataSource::new(&path) };
        let data = Dataset::open(&source, 0, &mut |_, _| ()).unwrap();
        let (tokens, targets) = batch(&data, 0, 1, wanted.len() - 1);
        assert_eq!(Tokenizer::Bytes.decode(&tokens).unwrap(), wanted[..wanted.len() - 1]);
        let shown: String =
            targets.iter().map(|&target| if target == -100 { '_' } else { target as u8 as char }).collect();
        assert_eq!(shown, trained[1..], "{wanted}");
        assert_eq!((data.documents(), data.prompt_tokens()), (4, trained.matches('_').count()));
    }
    let all = DataSource { cache: Some(&cache), ..DataSource::new(&path) };
    let data = Dataset::open(&all, 0, &mut |_, _| panic!("the same tokens are kept")).unwrap();
    assert!(batch(&data, 0, 1, 40).1.iter().all(|&target| target >= 0));
    let text = scratch.file("a.txt", b"nothing but text");
    let error = tokens_of(&DataSource { mask_prompt: true, ..DataSource::new(&text) }).unwrap_err();
    assert!(error.contains("`mask_prompt` is set, but") && error.contains("a.txt has no prompts"), "{error}");
    let error =
        tokens_of(&DataSource { chat_template: Some("chatm"), ..DataSource::new(&path) }).unwrap_err();
    assert_eq!(error, "`chatm` is no chat template; use chatml, llama3, plain or a file");
}

#[test]
fn every_window_has_something_to_predict() {
    let scratch = Scratch::new("answers");
    let line = serde_json::json!({ "prompt": "p".repeat(95), "completion": "abcd" });
    let path = scratch.file("a.jsonl", format!("{line}\n").repeat(20).as_bytes());
    let source = DataSource { mask_prompt: true, ..DataSource::new(&path) };
    let mut data = Dataset::open(&source, 3, &mut |_, _| ()).unwrap();
    data.hold_back(0.1);
    data.check(9).unwrap();
    for number in 0..20 {
        for (_, targets) in [batch(&data, number, 4, 9), held_batch(&data, number, 4, 9)] {
            for window in targets.chunks(9) {
                let answers: Vec<i64> = window.iter().copied().filter(|&target| target != -100).collect();
                assert_eq!(answers, [97, 98, 99, 100, 10], "the end of a document is an answer");
            }
        }
    }
    let line = serde_json::json!({ "prompt": "p".repeat(99), "completion": "" });
    let path = scratch.file("b.jsonl", format!("{line}\n").repeat(20).as_bytes());
    let data = Dataset::open(&DataSource { path: &path, ..source }, 3, &mut |_, _| ()).unwrap();
    assert!(data.check(9).is_ok(), "ends of documents are something");
}

#[test]
fn a_second_start_reads_no_text() {
    let scratch = Scratch::new("stamp");
    let (cache, day) = (scratch.0.join("cache"), std::time::Duration::from_secs(86400));
    let old = |path: &Path| {
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::now() - day).unwrap();
    };
    let stamps = || {
        let names = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_some_and(|end| end == "stamp")).collect::<Vec<_>>()
    };
    let text = scratch.file("a.jsonl", b"{\"text\": \"a cat\"}\n");
    let source = DataSource { cache: Some(&cache), ..DataSource::new(&text) };
    let cat: Vec<i64> = "a cat\n".bytes().map(i64::from).collect();
    assert_eq!(tokens_of(&source), Ok(cat.clone()));
    assert!(stamps().is_empty(), "a file that has just changed may change again unseen");
    old(&text);
    assert_eq!(tokens_of(&source), Ok(cat.clone()));
    let [stamp] = &stamps()[..] else { panic!("one stamp") };
    // With the stamp of other text its tokens are opened: the text is not read.
    let other = scratch.file("b.jsonl", b"{\"text\": \"dog\"}\n");
    old(&other);
    tokens_of(&DataSource { path: &other, ..source }).unwrap();
    let second = stamps().into_iter().find(|path| path != stamp).unwrap();
    fs::copy(second, stamp).unwrap();
    assert_eq!(tokens_of(&source), Ok("dog\n".bytes().map(i64::from).collect()));
    old(&text);
    assert_eq!(tokens_of(&source), Ok(cat), "a file that was touched is read again");
    let tokens = scratch.file("c.bin", &[7, 0, 9, 0]);
    old(&tokens);
    let numbers = DataSource { path: &tokens, ..source };
    let vocab = || Dataset::open(&numbers, 0, &mut |_, _| ()).unwrap().vocab();
    assert_eq!((vocab(), vocab()), (10, 10));
}

#[test]
fn tokens_keep_their_documents_and_prompts_beside_them() {
    let scratch = Scratch::new("beside");
    let lines = b"{\"prompt\": \"ab\", \"completion\": \"c\"}\n{\"prompt\": \"d\", \"completion\": \"e\"}\n";
    let (text, out) = (scratch.file("a.jsonl", lines), scratch.0.join("out/a.bin"));
    fs::create_dir_all(out.parent().unwrap()).unwrap();
    DataSource::new(&text).tokenize(&out, &mut |_, _| ()).unwrap();
    let dir = out.parent().unwrap();
    let source = DataSource { mask_prompt: true, ..DataSource::new(dir) };
    let data = Dataset::open(&source, 0, &mut |_, _| ()).unwrap();
    assert_eq!((data.tokens(), data.documents(), data.prompt_tokens()), (7, 2, 3));
    assert_eq!(batch(&data, 0, 1, 6).1, [-100, 99, 10, -100, 101, 10]);
    DataSource::new(&scratch.file("b.txt", b"text")).tokenize(&out, &mut |_, _| ()).unwrap();
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "no list of other tokens stays");
    scratch.file("out/a.bin.docs", &[3, 0, 0, 0, 0, 0, 0, 0]);
    let error = tokens_of(&DataSource::new(dir)).unwrap_err();
    assert!(error.contains("a.bin.docs does not belong to the 4 tokens of"), "{error}");
}
