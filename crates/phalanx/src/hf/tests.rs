//! Directories round-trip, variants of other versions are read, and what does not fit is listed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use half::{bf16, f16};
use phalanx_ir::Shape;
use phalanx_models::zoo::{ZOO, ZooChoice, ZooEntry};
use phalanx_models::{DecoderFamily, Gpt2Config, LlamaConfig, ModelConfig};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::*;

/// A directory that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("phalanx-hf-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn config(&self, edit: impl FnOnce(&mut Value)) -> Result<ModelConfig, String> {
        let mut json = super::config::to_json(&gpt2()).unwrap();
        edit(&mut json);
        fs::write(self.0.join("config.json"), json.to_string()).unwrap();
        read_config(&self.0).map_err(|error| error.to_string())
    }

    /// Writes tensors of one type under their names.
    fn tensors(&self, file: &str, tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) {
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name.to_string(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &self.0.join(file)).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn gpt2() -> ModelConfig {
    let ModelConfig::Gpt2(nano) = ModelConfig::preset("gpt2", "nano").unwrap() else { panic!("gpt2") };
    ModelConfig::Gpt2(Gpt2Config { layers: 2, width: 8, heads: 2, hidden: 24, vocab: 11, context: 6, ..nano })
}

fn llama() -> ModelConfig {
    let ModelConfig::Llama(nano) = ModelConfig::preset("llama", "nano").unwrap() else { panic!("llama") };
    let biased = LlamaConfig { attention_bias: true, mlp_bias: true, tied: false, rope_base: 5e5, ..nano };
    let eps = 1e-6;
    ModelConfig::Llama(LlamaConfig { layers: 2, width: 8, head_dim: 6, hidden: 12, vocab: 11, eps, ..biased })
}

fn weights(model: &ModelConfig) -> BTreeMap<String, Vec<f32>> {
    let seed = |name: &str| name.bytes().map(usize::from).sum::<usize>() % 1000;
    let number = |name: &str, index: usize| (seed(name) * 31 + index) as f32 * 0.1 - 3.0;
    let fill = |name: &str, shape: &Shape| (0..shape.elements()).map(|index| number(name, index)).collect();
    let tensors = tensors(model).unwrap();
    tensors.iter().flat_map(Stored::parts).map(|(name, shape)| (name.clone(), fill(name, shape))).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn wanted(list: &[(&str, &[usize])]) -> Vec<Stored> {
    list.iter().map(|(name, shape)| Stored::whole(*name, Shape::new(*shape))).collect()
}

#[test]
fn written_models_read_back() {
    for (name, model) in [("gpt2", gpt2()), ("llama", llama())] {
        let scratch = Scratch::new(name);
        let weights = weights(&model);
        write_model(&scratch.0, &model, &weights, SaveOptions::default()).unwrap();
        assert_eq!(read_config(&scratch.0).unwrap(), model);
        assert_eq!(read_weights(&scratch.0, &tensors(&model).unwrap()).unwrap(), weights);
        let mut files: Vec<_> = fs::read_dir(&scratch.0).unwrap().map(|f| f.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["config.json", "model.safetensors"], "nothing is left beside");
    }
}

#[test]
fn weights_of_16_bits_are_the_nearest_ones_and_read_back() {
    for (name, dtype, stored) in [("bf16", SaveDtype::Bf16, Dtype::BF16), ("f16", SaveDtype::F16, Dtype::F16)]
    {
        let (scratch, model) = (Scratch::new(&format!("saved-{name}")), gpt2());
        let mut weights = weights(&model);
        // Ties between neighbours, which go to the even one, and ends of the ranges.
        let bias = weights.get_mut("transformer.ln_f.bias").unwrap();
        let above = |parts: i16, of: i16| 1.0 + f32::from(parts) / f32::from(of);
        let ties = [above(1, 256), above(3, 256), above(1, 2048), above(3, 2048), 65504.0, -0.0];
        bias[..6].copy_from_slice(&ties);
        let options = SaveOptions { dtype, ..SaveOptions::default() };
        write_model(&scratch.0, &model, &weights, options).unwrap();
        assert_eq!(read_config(&scratch.0).unwrap(), model);
        let read = read_weights(&scratch.0, &tensors(&model).unwrap()).unwrap();
        let expected = match dtype {
            SaveDtype::Bf16 => [1.0, above(1, 64), 1.0, 1.0, 65536.0, -0.0],
            _ => [above(1, 256), above(3, 256), 1.0, above(1, 512), 65504.0, -0.0],
        };
        assert_eq!(read["transformer.ln_f.bias"][..6], expected);
        for (name, values) in &weights {
            let ulp = if dtype == SaveDtype::Bf16 { 2f32.powi(-8) } else { 2f32.powi(-11) };
            let near = |(&a, &b): (&f32, &f32)| (a - b).abs() <= ulp * a.abs();
            assert!(values.iter().zip(&read[name]).all(near), "{name}");
        }
        let file = fs::read(scratch.0.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&file).unwrap();
        assert!(file.tensors().iter().all(|(_, tensor)| tensor.dtype() == stored));
        let config: Value =
            serde_json::from_slice(&fs::read(scratch.0.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["dtype"], if dtype == SaveDtype::Bf16 { "bfloat16" } else { "float16" });
        // What was rounded once stays as it is.
        write_model(&scratch.0, &model, &read, options).unwrap();
        assert_eq!(read_weights(&scratch.0, &tensors(&model).unwrap()).unwrap(), read);
    }
}

#[test]
fn a_weight_beyond_the_type_is_named_and_nothing_is_written() {
    let (scratch, model) = (Scratch::new("overflow"), gpt2());
    let mut weights = weights(&model);
    let save = |weights: &BTreeMap<String, Vec<f32>>, dtype| {
        write_model(&scratch.0, &model, weights, SaveOptions { dtype, ..SaveOptions::default() })
    };
    // 65519 is nearest to 65504, and 65520 to what would be 65536.
    weights.get_mut("transformer.h.1.attn.k.weight").unwrap()[3] = -65519.0;
    save(&weights, SaveDtype::F16).unwrap();
    fs::remove_file(scratch.0.join("model.safetensors")).unwrap();
    weights.get_mut("transformer.h.1.attn.k.weight").unwrap()[3] = -65520.0;
    let error = save(&weights, SaveDtype::F16).unwrap_err().to_string();
    let expected = "`transformer.h.1.attn.k.weight` has the weight -65520.0, and float16 ends below that: save it in \
                    another type, such as --save-dtype f32";
    assert_eq!(error, expected);
    assert!(!scratch.0.join("model.safetensors").exists());
    save(&weights, SaveDtype::Bf16).unwrap();
    weights.get_mut("transformer.h.1.attn.k.weight").unwrap()[3] = f32::MAX;
    assert!(save(&weights, SaveDtype::Bf16).unwrap_err().to_string().contains("bfloat16 ends below"));
}

#[test]
fn query_key_and_value_are_the_columns_of_c_attn() {
    let scratch = Scratch::new("columns");
    let (weights, path) = (weights(&gpt2()), scratch.0.join("model.safetensors"));
    write_model(&scratch.0, &gpt2(), &weights, SaveOptions::default()).unwrap();
    let written = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&written).unwrap();
    let part = |layer: usize, part: &str| &weights[&format!("transformer.h.{layer}.attn.{part}")][..];
    for layer in 0..2 {
        let bias = file.tensor(&format!("transformer.h.{layer}.attn.c_attn.bias")).unwrap();
        let joined = ["q.bias", "k.bias", "v.bias"].map(|name| part(layer, name)).concat();
        assert_eq!((bias.shape(), bias.data()), (&[24][..], &bytes(&joined)[..]));
        let weight = file.tensor(&format!("transformer.h.{layer}.attn.c_attn.weight")).unwrap();
        let element = |row: usize, column: usize| {
            part(layer, ["q.weight", "k.weight", "v.weight"][column / 8])[row * 8 + column % 8]
        };
        let joined: Vec<f32> = (0..8 * 24).map(|index| element(index / 24, index % 24)).collect();
        assert_eq!((weight.shape(), weight.data()), (&[8, 24][..], &bytes(&joined)[..]));
    }
    assert_eq!(file.len(), 2 + 2 * 12 + 2, "tables, blocks and the last norm have nothing else");
    let read = read_weights(&scratch.0, &tensors(&gpt2()).unwrap()).unwrap();
    write_model(&scratch.0, &gpt2(), &read, SaveOptions::default()).unwrap();
    assert!(fs::read(&path).unwrap() == written, "the same bytes again");
}

#[test]
fn a_packed_tensor_that_does_not_fit_is_listed_under_its_own_name() {
    let scratch = Scratch::new("packed");
    let ModelConfig::Gpt2(config) = gpt2() else { panic!("gpt2") };
    let narrow = ModelConfig::Gpt2(Gpt2Config { width: 4, ..config });
    write_model(&scratch.0, &narrow, &weights(&narrow), SaveOptions::default()).unwrap();
    let read = |wanted: &[Stored]| read_weights(&scratch.0, wanted).unwrap_err().to_string();
    let error = read(&tensors(&gpt2()).unwrap());
    let listed = "`transformer.h.0.attn.c_attn.weight` is [4, 12] but the model wants [8, 24]";
    assert!(error.contains(listed) && !error.contains("attn.q"), "{error}");
    let mut deeper = tensors(&narrow).unwrap();
    deeper.extend(wanted(&[("transformer.h.2.attn.c_attn.bias", &[12])]));
    assert!(read(&deeper).contains("missing: `transformer.h.2.attn.c_attn.bias` [12]"));
}

#[test]
fn only_fitting_weights_of_known_families_are_written() {
    let scratch = Scratch::new("refused");
    let mut weights = weights(&gpt2());
    weights.remove("transformer.ln_f.bias");
    weights.insert("extra".into(), vec![0.0]);
    weights.insert("transformer.ln_f.weight".into(), vec![0.0]);
    let error = write_model(&scratch.0, &gpt2(), &weights, SaveOptions::default()).unwrap_err().to_string();
    assert!(error.contains("missing: `transformer.ln_f.bias` [8]; unexpected: `extra` [1]"), "{error}");
    assert!(error.contains("`transformer.ln_f.weight` is [1] but the model wants [8]"), "{error}");
    let mlp = ModelConfig::preset("mlp", "nano").unwrap();
    let error =
        write_model(&scratch.0, &mlp, &BTreeMap::new(), SaveOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`mlp` has no transformers form"), "{error}");
}

#[test]
fn configurations_of_other_versions_are_read() {
    let scratch = Scratch::new("versions");
    let read = |edit: fn(&mut Value)| scratch.config(edit).unwrap();
    let ModelConfig::Gpt2(config) = read(|json| {
        json["n_inner"] = Value::Null;
        json["activation_function"] = "gelu".into();
        json.as_object_mut().unwrap().remove("tie_word_embeddings");
        json["task_specific_params"] = json!({ "text-generation": { "max_length": 50 } });
    }) else {
        panic!("gpt2")
    };
    assert_eq!((config.hidden, config.activation, config.tied), (32, phalanx_ir::Activation::GeluErf, true));
    let llama_base = |edit: fn(&mut Value)| {
        let result = scratch.config(|json| {
            *json = super::config::to_json(&llama()).unwrap();
            json.as_object_mut().unwrap().remove("rope_parameters");
            json["head_dim"] = Value::Null;
            edit(json);
        });
        let ModelConfig::Llama(config) = result.unwrap() else { panic!("llama") };
        (config.rope_base, config.head_dim)
    };
    assert_eq!(llama_base(|_| {}), (5e5, 2));
    assert_eq!(llama_base(|json| json["rope_parameters"] = json!({ "rope_theta": 1e6 })), (1e6, 2));
    assert_eq!(llama_base(|json| json["rope_scaling"] = Value::Null), (5e5, 2));
}

#[test]
fn unsupported_configurations_name_key_value_and_choices() {
    let scratch = Scratch::new("unsupported");
    let error = |edit: fn(&mut Value)| scratch.config(edit).unwrap_err();
    let model = error(|json| json["model_type"] = "whisper".into());
    assert!(model.ends_with(r#""gemma", "gpt_neox", "mixtral", "bert", "roberta", "t5", "vit""#), "{model}");
    assert!(model.contains(r#"`model_type` is "whisper"; supported: "gpt2", "llama", "mistral""#), "{model}");
    assert!(
        error(|json| json["n_head"] = "two".into())
            .ends_with(r#"`n_head` is "two"; it must be a whole number"#)
    );
    assert!(error(|json| json["n_head"] = Value::Null).ends_with("`n_head` is missing; add it"));
    assert!(error(|json| json["activation_function"] = "mish".into()).contains(r#"is "mish"; supported: "#));
    assert!(error(|json| json["scale_attn_weights"] = false.into()).ends_with("is false; supported: true"));
    assert!(
        error(|json| json["embd_pdrop"] = 0.5.into())
            .contains("`embd_pdrop` is 0.5; supported: the same rate")
    );
    let rope = |rope: Value| {
        let edit = |json: &mut Value| {
            *json = super::config::to_json(&llama()).unwrap();
            json["rope_parameters"] = rope;
        };
        scratch.config(edit).unwrap_err()
    };
    let yarn = rope(json!({ "rope_type": "yarn", "factor": 8.0 }));
    let kinds = r#"`rope_type` is "yarn"; supported: "default", "linear", "dynamic", "llama3""#;
    assert!(yarn.ends_with(kinds), "{yarn}");
    let short = rope(json!({ "rope_type": "linear" }));
    assert!(short.ends_with("`factor` is missing; add it"), "{short}");
    let wrong = rope(json!({ "rope_type": "linear", "factor": -1.0 }));
    assert!(
        wrong.contains("`rope_parameters` is {\"factor\":-1.0") && wrong.contains("linear:FACTOR"),
        "{wrong}"
    );
    assert!(error(|json| *json = json!([])).contains("holds no JSON object"));
    fs::remove_file(scratch.0.join("config.json")).unwrap();
    assert!(read_config(&scratch.0).unwrap_err().to_string().contains("config.json"));
}

#[test]
fn rotary_scaling_is_read_in_both_spellings_and_written() {
    let scratch = Scratch::new("rope");
    let read = |key: &'static str, rope: Value| {
        let result = scratch.config(|json| {
            *json = super::config::to_json(&llama()).unwrap();
            json.as_object_mut().unwrap().remove("rope_parameters");
            json[key] = rope;
        });
        let ModelConfig::Llama(config) = result.unwrap() else { panic!("llama") };
        assert_eq!(config.rope_base, 5e5);
        config.rope_scaling.to_string()
    };
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    for key in ["rope_scaling", "rope_parameters"] {
        assert_eq!(read(key, llama3.clone()), "llama3:8,1,4,8192");
        assert_eq!(read(key, json!({ "type": "linear", "factor": 2 })), "linear:2");
        assert_eq!(read(key, json!({ "rope_type": "dynamic", "factor": 4.0 })), "dynamic:4");
        assert_eq!(read(key, json!({ "rope_type": "default" })), "none");
    }
    let ModelConfig::Llama(plain) = llama() else { panic!("llama") };
    for text in ["none", "linear:2.5", "dynamic:4", "llama3:8,1,4,8192"] {
        let model = ModelConfig::Llama(LlamaConfig { rope_scaling: text.parse().unwrap(), ..plain.clone() });
        let json = super::config::to_json(&model).unwrap();
        assert_eq!(json.get("rope_scaling").is_some(), text != "none");
        assert_eq!(scratch.config(|old| *old = json), Ok(model));
    }
}

#[test]
fn a_directory_that_cannot_be_replaced_leaves_the_new_one_beside_it() {
    let scratch = Scratch::new("replace");
    let dir = scratch.0.join("model");
    let fill = |new: &std::path::Path| {
        // What is in the way cannot be removed as a directory.
        fs::write(scratch.0.join("model.old"), "").unwrap();
        write_model(new, &gpt2(), &weights(&gpt2()), SaveOptions::default())
    };
    let error = replace_directory(&dir, fill).unwrap_err().to_string();
    assert!(error.starts_with("cannot replace ") && error.contains("the model is in "), "{error}");
    assert!(error.contains("model.partial: move it from there"), "{error}");
    assert_eq!(read_config(&scratch.0.join("model.partial")).unwrap(), gpt2());
}

#[test]
fn shards_half_formats_old_names_and_buffers_are_read() {
    let scratch = Scratch::new("shards");
    let brain = [1.5f32, -2.0].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    let half = [0.25f32].iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    scratch.tensors("a.safetensors", &[("wte.weight", Dtype::BF16, vec![2, 1], brain)]);
    let buffer = ("h.0.attn.bias", Dtype::U8, vec![1, 1], vec![1]);
    let head = ("lm_head.weight", Dtype::F32, vec![2, 1], bytes(&[9.0, 9.0]));
    scratch.tensors("b.safetensors", &[("ln_f.bias", Dtype::F16, vec![1], half), buffer, head]);
    let index = json!({ "weight_map": { "wte.weight": "a.safetensors", "ln_f.bias": "b.safetensors" } });
    fs::write(scratch.0.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let wanted = wanted(&[("transformer.wte.weight", &[2, 1]), ("transformer.ln_f.bias", &[1])]);
    let read = read_weights(&scratch.0, &wanted).unwrap();
    assert_eq!(read["transformer.wte.weight"], [1.5, -2.0]);
    assert_eq!(read["transformer.ln_f.bias"], [0.25]);
}

#[test]
fn a_stored_head_stands_in_for_a_tied_embedding() {
    let scratch = Scratch::new("head");
    scratch.tensors("model.safetensors", &[("lm_head.weight", Dtype::F32, vec![2, 1], bytes(&[3.0, 4.0]))]);
    let read = |list| read_weights(&scratch.0, &wanted(list));
    assert_eq!(
        read(&[("model.embed_tokens.weight", &[2, 1])]).unwrap()["model.embed_tokens.weight"],
        [3.0, 4.0]
    );
    assert_eq!(read(&[("lm_head.weight", &[2, 1])]).unwrap()["lm_head.weight"], [3.0, 4.0]);
    assert!(read(&[("model.embed_tokens.weight", &[3, 1])]).is_err());
}

#[test]
fn everything_that_does_not_fit_is_listed() {
    let scratch = Scratch::new("misfit");
    let error = |list| read_weights(&scratch.0, &wanted(list)).unwrap_err().to_string();
    assert!(error(&[]).contains("has neither model.safetensors nor model.safetensors.index.json"));
    fs::write(scratch.0.join("model.safetensors.index.json"), r#"{"weight_map":{"a":"../b"}}"#).unwrap();
    assert!(error(&[]).contains("names the shard `../b`"));
    fs::write(scratch.0.join("model.safetensors"), b"junk").unwrap();
    assert!(error(&[]).contains("model.safetensors is not a safetensors file"));
    let float = |name, shape: Vec<usize>| {
        (name, Dtype::F32, shape.clone(), bytes(&vec![0.0; shape.iter().product()]))
    };
    let double = ("d", Dtype::I64, vec![1], vec![0; 8]);
    scratch.tensors("model.safetensors", &[float("a", vec![2, 3]), float("x", vec![4]), double]);
    let text = error(&[("a", &[3, 2]), ("b", &[5]), ("d", &[1])]);
    let listed = "missing: `b` [5]; unexpected: `x` [4]; wrong shape: `a` is [2, 3] but the model wants [3, 2]; \
                  wrong element type: `d` is I64 but must be F32, BF16 or F16; check config.json";
    assert!(text.ends_with(listed), "{text}");
}

#[test]
fn end_tokens_come_from_the_generation_config_first() {
    let scratch = Scratch::new("ends");
    let read = |generation: Option<Value>, config: Value| {
        let path = scratch.0.join("generation_config.json");
        let _ = fs::remove_file(&path);
        if let Some(json) = generation {
            fs::write(&path, json.to_string()).unwrap();
        }
        fs::write(scratch.0.join("config.json"), config.to_string()).unwrap();
        end_tokens(&scratch.0).map_err(|error| error.to_string())
    };
    let two = json!({ "eos_token_id": 2 });
    assert_eq!(read(None, two.clone()), Ok(vec![2]));
    assert_eq!(read(Some(json!({ "eos_token_id": [7, 9] })), two.clone()), Ok(vec![7, 9]));
    assert_eq!(read(Some(json!({})), two), Ok(vec![2]), "a file without the key leaves it to the other");
    assert_eq!(read(None, json!({ "eos_token_id": null })), Ok(vec![]));
    let error = read(None, json!({ "eos_token_id": "</s>" })).unwrap_err();
    assert!(error.contains("`eos_token_id` is \"</s>\""), "{error}");
}

/// The configuration of a family's smallest preset after an edit.
fn edited(scratch: &Scratch, family: &str, edit: fn(&mut Value)) -> Result<LlamaConfig, String> {
    let model = ModelConfig::preset(family, "nano").unwrap();
    let result = scratch.config(|json| {
        *json = super::config::to_json(&model).unwrap();
        edit(json);
    });
    result.map(|model| match model {
        ModelConfig::Llama(config) => config,
        other => panic!("{other:?}"),
    })
}

fn remove(json: &mut Value, keys: &[&str]) {
    keys.iter().for_each(|key| drop(json.as_object_mut().unwrap().remove(*key)));
}

#[test]
fn every_family_is_read_as_it_is_written() {
    let scratch = Scratch::new("families");
    for family in DecoderFamily::ALL {
        let config = edited(&scratch, family.name(), |_| {}).unwrap();
        assert_eq!(ModelConfig::preset(family.name(), "nano"), Ok(ModelConfig::Llama(config.clone())));
        let more = LlamaConfig {
            window: ["mistral", "qwen2", "qwen3", "phi3", "mixtral"]
                .contains(&family.name())
                .then(|| if family.name().starts_with("qwen") { "99,2" } else { "99" }.parse().unwrap()),
            rotary_dim: family.turns_partly().then_some(6),
            experts: config.experts.map(|_| "3,1,0.25".parse().unwrap()),
            padding: (family != DecoderFamily::GptNeox).then_some(7),
            rope_base: 77.0,
            tied: !config.tied,
            ..config
        };
        let json = super::config::to_json(&ModelConfig::Llama(more.clone())).unwrap();
        assert_eq!(scratch.config(|old| *old = json), Ok(ModelConfig::Llama(more)), "{family:?}");
    }
}

#[test]
fn absent_keys_mean_what_they_mean_to_transformers() {
    let scratch = Scratch::new("absent");
    let mistral = edited(&scratch, "mistral", |json| {
        remove(json, &["sliding_window", "num_key_value_heads", "head_dim", "max_position_embeddings"]);
        json["num_attention_heads"] = 16.into();
    });
    let LlamaConfig { window, kv_heads, head_dim, context, .. } = mistral.unwrap();
    assert_eq!((window, kv_heads, head_dim, context), ("4096".parse().ok(), 8, 8, 131_072));
    let null = edited(&scratch, "mistral", |json| json["num_key_value_heads"] = Value::Null).unwrap();
    assert_eq!((null.kv_heads, null.window), (4, None));
    let gemma = edited(&scratch, "gemma", |json| {
        remove(json, &["pad_token_id", "head_dim", "tie_word_embeddings", "hidden_act"]);
    });
    let gemma = gemma.unwrap();
    assert_eq!((gemma.padding, gemma.head_dim, gemma.tied), (Some(0), 256, true));
    assert_eq!(gemma.activation, phalanx_ir::Activation::GeluTanh);
    let old = edited(&scratch, "gemma", |json| json["hidden_act"] = "gelu".into()).unwrap();
    assert_eq!(old.activation, phalanx_ir::Activation::GeluTanh, "the first releases mean this one");
    let neox = edited(&scratch, "gpt_neox", |json| {
        remove(json, &["rope_parameters", "rotary_pct", "rotary_emb_base", "use_parallel_residual"]);
    });
    let neox = neox.unwrap();
    assert_eq!((neox.rotary_dim, neox.rope_base, neox.parallel), (Some(8), 1e4, true));
    let mixtral = edited(&scratch, "mixtral", |json| {
        remove(json, &["rope_parameters", "rope_theta", "num_local_experts", "num_experts_per_tok"]);
        json["output_router_logits"] = true.into();
    });
    let mixtral = mixtral.unwrap();
    assert_eq!((mixtral.rope_base, mixtral.experts.unwrap().to_string()), (1e6, "8,2,0.001".into()));
    let last = edited(&scratch, "llama", |json| json["pad_token_id"] = (-1).into()).unwrap();
    assert_eq!(last.padding, Some(255));
    let types = edited(&scratch, "qwen3", |json| {
        json["use_sliding_window"] = true.into();
        json["sliding_window"] = 50.into();
        json["layer_types"] =
            json!(["full_attention", "full_attention", "full_attention", "sliding_attention"]);
    });
    assert_eq!(types.unwrap().window, "50,3".parse().ok());
}

#[test]
fn what_families_cannot_be_is_refused() {
    let scratch = Scratch::new("refusals");
    let error = |family, edit: fn(&mut Value)| edited(&scratch, family, edit).unwrap_err();
    let types = error("qwen2", |json| {
        json["layer_types"] =
            json!(["sliding_attention", "full_attention", "full_attention", "full_attention"]);
    });
    assert!(
        types.contains("`layer_types` is [\"sliding_attention\"") && types.contains("4 layers"),
        "{types}"
    );
    let noise = error("mixtral", |json| json["router_jitter_noise"] = 0.1.into());
    assert!(noise.ends_with("`router_jitter_noise` is 0.1; supported: 0.0"), "{noise}");
    let both = error("gemma", |json| json["use_bidirectional_attention"] = true.into());
    assert!(both.ends_with("`use_bidirectional_attention` is true; supported: false"), "{both}");
    let part = error("qwen2", |json| json["partial_rotary_factor"] = 0.5.into());
    assert!(part.ends_with("`partial_rotary_factor` is 0.5; supported: 1.0"), "{part}");
    let odd = error("gpt_neox", |json| {
        remove(json, &["rope_parameters"]);
        json["rotary_pct"] = 0.1.into();
    });
    assert!(odd.contains("`rotary_pct` is 0.1") && odd.contains("32 features of a head"), "{odd}");
    let long = error("phi3", |json| json["rope_scaling"] = json!({ "type": "longrope" }));
    assert!(long.contains("`rope_type` is \"longrope\""), "{long}");
    let padding = error("olmo2", |json| json["pad_token_id"] = 256.into());
    assert!(
        padding.contains("`pad_token_id` is 256; supported: null, or a token below the 256"),
        "{padding}"
    );
    let quantized = error("llama", |json| json["quantization_config"] = json!({ "bits": 4 }));
    assert!(quantized.contains("`quantization_config` is {\"bits\":4}"), "{quantized}");
}

#[test]
fn every_model_of_the_zoo_is_read_as_it_is_written() {
    for entry in ZOO {
        let scratch = Scratch::new(&format!("zoo-{}", entry.name));
        let model = ModelConfig::Zoo(ZooChoice::new(entry, &*entry.preset("nano").unwrap()));
        let weights: BTreeMap<String, Vec<f32>> = tensors(&model)
            .unwrap()
            .iter()
            .map(|stored| (stored.name().to_string(), vec![0.5; stored.shape().elements()]))
            .collect();
        write_model(&scratch.0, &model, &weights, SaveOptions::default()).unwrap();
        assert_eq!(read_config(&scratch.0).unwrap(), model, "{}", entry.name);
        assert!(read_weights(&scratch.0, &tensors(&model).unwrap()).unwrap() == weights, "{}", entry.name);
    }
}

#[test]
fn files_of_encoders_have_old_names_and_parts_for_other_tasks() {
    let scratch = Scratch::new("bert");
    let numbers = |value: f32| (Dtype::F32, vec![2], bytes(&[value; 2]));
    let tensors = [
        ("bert.encoder.LayerNorm.gamma", 1.0),
        ("bert.encoder.LayerNorm.beta", 2.0),
        ("embeddings.weight", 3.0),
        ("bert.pooler.dense.bias", 4.0),
        ("cls.seq_relationship.bias", 5.0),
        ("bert.embeddings.position_ids", 6.0),
        ("bn1.num_batches_tracked", 7.0),
    ];
    let tensors = tensors.map(|(name, value)| {
        let (dtype, shape, bytes) = numbers(value);
        (name, dtype, shape, bytes)
    });
    scratch.tensors("model.safetensors", &tensors);
    let names = ["bert.encoder.LayerNorm.weight", "bert.encoder.LayerNorm.bias", "bert.embeddings.weight"];
    let wanted = wanted(&names.map(|name| (name, &[2usize][..])));
    let read = read_weights(&scratch.0, &wanted).unwrap();
    assert_eq!(names.map(|name| read[name][0]), [1.0, 2.0, 3.0]);
    assert!(read_weights(&scratch.0.join("model.safetensors"), &wanted).unwrap() == read);
}

#[test]
fn what_encoders_cannot_be_is_refused() {
    let scratch = Scratch::new("encoders");
    let read = |edit: fn(&mut Value)| {
        let entry = ZooEntry::find("bert").unwrap();
        let model = ModelConfig::Zoo(ZooChoice::new(entry, &*entry.preset("nano").unwrap()));
        let mut json = super::config::to_json(&model).unwrap();
        edit(&mut json);
        fs::write(scratch.0.join("config.json"), json.to_string()).unwrap();
        read_config(&scratch.0).map_err(|error| error.to_string())
    };
    let error = |edit: fn(&mut Value)| read(edit).unwrap_err();
    assert!(
        error(|json| json["hidden_act"] = json!("relu"))
            .ends_with("`hidden_act` is \"relu\"; supported: \"gelu\"")
    );
    assert!(
        error(|json| json["hidden_size"] = json!(-1))
            .contains("`hidden_size` is -1; supported: a whole number")
    );
    let ModelConfig::Zoo(usual) = read(|json| *json = json!({ "model_type": "bert" })).unwrap() else {
        panic!()
    };
    assert_eq!(usual.parameters(), 109_514_298);
    let unknown = error(|json| *json = json!({ "phalanx_model": "eagle", "sizes": {} }));
    assert!(unknown.contains("`phalanx_model` is \"eagle\"; supported: alexnet, "), "{unknown}");
    let sizes = error(|json| *json = json!({ "phalanx_model": "resnet", "sizes": { "wings": 2 } }));
    assert!(sizes.contains("unknown field `wings`"), "{sizes}");
}
