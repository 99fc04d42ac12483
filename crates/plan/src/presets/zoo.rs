//! What the presets know about the models of the zoo: which layers widen and narrow, where the blocks are.

use phalanx_ir::graph::{Graph, ValueId};
use phalanx_ir::{Glob, Op};
use phalanx_ops::{Embedding, Linear};

use super::specs::Specs;
use crate::PlanError;
use crate::plan::Pipeline;

/// Linear layers into heads or hidden features: their outputs are cut.
const COLUMNS: &[&str] = &[
    "attn.q",
    "attn.k",
    "attn.v",
    "mlp.c_fc",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
];

/// Linear layers back into the residual stream: their inputs are cut.
const ROWS: &[&str] = &["attn.c_proj", "mlp.c_proj", "self_attn.o_proj", "mlp.down_proj"];

/// Tables with a row for each token.
const TABLES: &[&str] = &["transformer.wte", "model.embed_tokens", "gpt_neox.embed_in", "lm_head"];

/// What the blocks of a family are called, and its layers before and after them.
const FAMILIES: &[(&str, &[&str], &[&str])] = &[
    (
        "transformer.h",
        &["transformer.wte*", "transformer.wpe*", "transformer.embedding*", "transformer.drop*"],
        &["transformer.ln_f*", "lm_head*", "logits*", "loss*"],
    ),
    (
        "model.layers",
        &["model.embed_tokens*", "model.dropout*"],
        &["model.norm*", "lm_head*", "logits*", "loss*"],
    ),
    (
        "gpt_neox.layers",
        &["gpt_neox.embed_in*", "gpt_neox.dropout*"],
        &["gpt_neox.final_layer_norm*", "lm_head*", "logits*", "loss*"],
    ),
];

/// Whether `name` is a layer of the list in some block.
fn is_one_of(list: &[&str], name: &str) -> bool {
    list.iter()
        .any(|entry| name == *entry || name.strip_suffix(entry).is_some_and(|path| path.ends_with('.')))
}

/// Cuts what tensor parallelism cuts. A vocabulary that does not divide stays whole.
pub(super) fn cut_features(
    model: &Graph,
    specs: &mut Specs<'_>,
    axis: &str,
    size: usize,
) -> Result<(), PlanError> {
    let mut found = false;
    for (_, layer) in model.layers().iter() {
        let Some(Linear { transposed, .. }) = layer.op.get() else { continue };
        let weight = &model.values()[layer.operands[1]].name;
        let (module, adapter) = module_of(weight);
        let (out, inner) = if *transposed { (1, 0) } else { (0, 1) };
        match adapter {
            // The first factor of a layer whose outputs are cut, the second of one whose inputs are, stay whole.
            Some(Adapter::Down) if is_one_of(COLUMNS, module) => {}
            Some(Adapter::Up) if is_one_of(ROWS, module) => {}
            _ if is_one_of(COLUMNS, module) => {
                specs.shard(layer.operands[1], out, axis, size)?;
                if let Some(&bias) = layer.operands.get(2) {
                    specs.shard(bias, 0, axis, size)?;
                }
                found = true;
            }
            _ if is_one_of(ROWS, module) => {
                specs.shard(layer.operands[1], inner, axis, size)?;
                found = true;
            }
            _ => {}
        }
    }
    for table in model.leaves(|op| matches!(op, Op::Param(_))) {
        if is_table(&model.values()[table].name) && specs.divides(table, 0, size) {
            specs.shard(table, 0, axis, size)?;
        }
    }
    if found { Ok(()) } else { Err(unknown(model, "tp", "`*.attn.q` or `*.self_attn.q_proj`")) }
}

/// Whether a parameter is a table with a row for each token.
pub(crate) fn is_table(name: &str) -> bool {
    name.strip_suffix(".weight").is_some_and(|module| TABLES.contains(&module))
}

/// A factor of a low-rank adapter beside a linear layer.
enum Adapter {
    /// From the inputs to the rank.
    Down,
    /// From the rank to the outputs.
    Up,
}

/// The linear layer that a weight belongs to, and which factor it is if it is one of an adapter.
fn module_of(weight: &str) -> (&str, Option<Adapter>) {
    let module = weight.strip_suffix(".weight").unwrap_or(weight);
    let factor = |suffix, adapter| Some((module.strip_suffix(suffix)?, Some(adapter)));
    let adapter = factor(".lora_A", Adapter::Down).or_else(|| factor(".lora_B", Adapter::Up));
    adapter.unwrap_or((module, None))
}

/// Cuts the residual stream along the sequence, where it begins and after every sum: the layers between follow. Adapters
/// of layers whose outputs are cut have their rank cut, or their inputs if it does not divide, so that they see whole
/// sequences as those do.
pub(super) fn cut_sequence(
    model: &Graph,
    specs: &mut Specs<'_>,
    axis: &str,
    size: usize,
) -> Result<(), PlanError> {
    let values: Vec<(ValueId, &str)> =
        model.values().iter().map(|(id, value)| (id, value.name.as_str())).collect();
    for (value, name) in values {
        let op = model.op_of(value);
        let is_stream = match op.get::<Embedding>() {
            Some(_) => TABLES.contains(&name),
            None => is_one_of(ROWS, name.strip_suffix(".base_layer").unwrap_or(name)),
        };
        if let (Op::Param(_), (module, Some(Adapter::Down))) = (op, module_of(name))
            && is_one_of(COLUMNS, module)
        {
            let dim = usize::from(!specs.divides(value, 0, size));
            specs.shard(value, dim, axis, size)?;
        }
        if is_stream {
            specs.shard(value, 1, axis, size)?;
        }
    }
    Ok(())
}

/// Deals the blocks evenly; what comes before them is with the first, what comes after with the last.
pub(super) fn pipeline(model: &Graph, axis: &str, stages: usize) -> Result<Pipeline, PlanError> {
    let found =
        FAMILIES.iter().map(|family| (family, count_blocks(model, family.0))).find(|(_, blocks)| *blocks > 0);
    let Some(((prefix, before, after), blocks)) = found else {
        return Err(unknown(model, "pp", "`transformer.h.0` or `model.layers.0`"));
    };
    if blocks < stages {
        return Err(PlanError::FewBlocks { model: model.name().into(), blocks, stages });
    }
    let mut patterns = vec![Vec::new(); stages];
    let named = |list: &[&str]| {
        list.iter().filter(|text| matches_layer(model, text)).map(|text| text.to_string()).collect::<Vec<_>>()
    };
    patterns[0].extend(named(before));
    for block in 0..blocks {
        let stage = &mut patterns[block * stages / blocks];
        stage.extend([format!("{prefix}.{block}"), format!("{prefix}.{block}.*")]);
    }
    patterns[stages - 1].extend(named(after));
    Ok(Pipeline { axis: axis.into(), stages: patterns })
}

fn count_blocks(model: &Graph, prefix: &str) -> usize {
    let has = |block: &usize| model.find(&format!("{prefix}.{block}")).is_some();
    (0..).take_while(has).count()
}

fn matches_layer(model: &Graph, pattern: &str) -> bool {
    let glob = Glob::new(pattern);
    model.layers().ids().any(|layer| glob.as_ref().is_some_and(|glob| glob.matches(model.layer_name(layer))))
}

fn unknown(model: &Graph, part: &str, wanted: &str) -> PlanError {
    PlanError::UnknownModel { part: part.into(), model: model.name().into(), wanted: wanted.into() }
}
