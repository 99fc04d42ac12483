use std::collections::BTreeSet;

use super::*;

fn problem(text: &str) -> String {
    let read = TrainConfig::parse(text);
    read.and_then(|config| config.validate()).unwrap_err().to_string()
}

#[test]
fn options_have_names_of_their_own_and_refer_to_others() {
    let names: Vec<&str> =
        OPTIONS.iter().flat_map(|option| [Some(option.name), option.alias]).flatten().collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for option in OPTIONS {
        for mark in option.marks {
            if let Needs(other) | Excludes(other) | OnlyWith(other, _) = mark {
                assert!(names.contains(other), "{} refers to {other}", option.name);
            }
            if let OnlyWith(other, values) = mark {
                let choices = OptionSpec::find(other).map(|other| (other.choices)()).unwrap();
                assert!(values.iter().all(|value| choices.contains(value)), "{}: {values:?}", option.name);
            }
        }
    }
}

#[test]
fn defaults_are_valid_and_read_as_themselves() {
    let mut config = TrainConfig::default();
    config.validate().unwrap();
    for option in OPTIONS {
        if let Some(value) = config.value(option.name) {
            config.set(option.name, &value).unwrap();
        }
    }
    assert_eq!(config, TrainConfig::default());
    let text = toml::to_string(&config).unwrap();
    assert_eq!(TrainConfig::parse(&text).unwrap(), config);
}

#[test]
fn former_names_are_understood_in_files_checkpoints_and_flags() {
    let expected = TrainConfig::default().blocks_batch(4).blocks_feature(8).blocks_sequence(2);
    let text = "leaves_batch = 4\nleaves_feature = 8\nleaves_sequence = 2\n";
    assert_eq!(TrainConfig::parse(text).unwrap(), expected);
    let json = r#"{"leaves_batch": 4, "leaves_feature": 8, "leaves_sequence": 2}"#;
    assert_eq!(serde_json::from_str::<TrainConfig>(json).unwrap(), expected);
    let mut config = TrainConfig::default();
    for (name, value) in [("leaves_batch", "4"), ("leaves_feature", "8"), ("blocks_sequence", "2")] {
        config.set(name, value).unwrap();
    }
    assert_eq!(config, expected);
}

#[test]
fn errors_name_the_line_the_option_its_value_and_what_is_allowed() {
    let cases = [
        ("steps = 3\nbach = 2\n", "line 2: there is no option `bach`: did you mean `batch`?"),
        ("batch = \"x\"\n", "line 1: `batch` is \"x\"; it must be a whole number, at least 1"),
        ("batch = 0\n", "`batch` is 0; it must be at least 1"),
        ("dropout = 1.0\n", "`dropout` is 1.0; it must be at least 0 and below 1"),
        (
            "bits = \"strickt\"\n",
            "line 1: `bits` is \"strickt\"; it must be one of strict, free; did you mean strict?",
        ),
        ("resume = true\n", "`resume` is true; it needs `checkpoint`, which is not set"),
        (
            "optimizer = \"sgd\"\neps = 1e-6\n",
            "`eps` is 1e-6; it is for `optimizer` adamw, adam, which is sgd: leave it out",
        ),
        (
            "checkpoint = \"c\"\nevery = 2\nevery_minutes = 3.0\n",
            "`every` is 2; it goes without `every_minutes`: take one of them out",
        ),
        (
            "drill = \"enospc@save:1\"\n",
            "`drill` is enospc@save:1; it needs `checkpoint`: nothing is saved without",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(text), expected, "{text}");
    }
    let unlike = problem("zzz = 1\n");
    assert!(
        unlike.starts_with("line 1: there is no option `zzz`: use one of model, size, sizes, layers, "),
        "{unlike}"
    );
}

#[test]
fn an_option_that_is_set_takes_the_place_of_one_that_it_excludes() {
    let mut config = TrainConfig::parse("checkpoint = \"c\"\nevery = 2\nimmediate = true\n").unwrap();
    config.set("every_minutes", "0.5").unwrap();
    config.set("stepped", "7").unwrap();
    assert_eq!((config.every, config.every_minutes), (None, Some(0.5)));
    assert_eq!((config.immediate, config.stepped), (false, Some(7)));
    assert!(config.set("keep", "0").unwrap_err().to_string().ends_with("`keep` is 0; it must be at least 1"));
}
