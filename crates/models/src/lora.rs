//! Low-rank adapters beside linear layers: y = W x + b + (alpha / rank) · B A x.
//!
//! [`Lora::adapt`] rewrites the graph of any model, so that no family knows about adapters. A layer called `m` with the
//! weight `m.weight` gets the parameters `m.lora_A.weight` `[rank, in]`, which starts as in PEFT, uniform within 1/√in, and
//! `m.lora_B.weight` `[out, rank]`, which starts at zero. The result keeps the name `m`; that of the layer alone is
//! `m.base_layer`.

use std::fmt;
use std::str::FromStr;

use phalanx_ir::graph::{BuildError, Builder, Graph, LayerId, ValueId};
use phalanx_ir::{Activation, Binary, Glob, Id, Init, Op, Unary};
use phalanx_ops::{Layers, Linear};

use crate::ModelError;
use crate::check::Check;

/// Which layers get adapters, and of which rank. Written as `RANK[,ALPHA[,PATTERN...]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rows of A.
    pub rank: usize,
    /// The adapter's share is multiplied by `alpha / rank`.
    pub alpha: f32,
    /// Patterns for names of linear layers, or for their last parts; empty for [`Lora::USUAL`].
    pub patterns: Vec<String>,
}

/// A linear layer that gets an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptedModule {
    /// Its name; the weight is `name.weight`.
    pub name: String,
    /// Features of its input.
    pub inputs: usize,
    /// Features of its result.
    pub outputs: usize,
    /// The weight is stored `[in, out]`.
    pub transposed: bool,
}

impl Lora {
    /// What PEFT adapts if nothing is said: queries and values of Llama and families like it, all three projections where
    /// files hold them as one, in GPT-2 and GPT-NeoX.
    pub const USUAL: [&str; 8] = [
        "self_attn.q_proj",
        "self_attn.v_proj",
        "attn.q",
        "attn.k",
        "attn.v",
        "attention.q",
        "attention.k",
        "attention.v",
    ];

    /// The names of the parameters of adapters, as patterns.
    pub const PARAMETERS: [&str; 2] = ["*.lora_A.weight", "*.lora_B.weight"];

    /// What the adapters' share is multiplied by.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    /// The linear layers of `model` that get adapters.
    pub fn modules(&self, model: &Graph) -> Result<Vec<AdaptedModule>, ModelError> {
        let layers = self.layers(model)?;
        Ok(layers.into_iter().map(|layer| describe(model, layer)).collect())
    }

    /// The model with adapters.
    pub fn adapt(&self, model: &Graph) -> Result<Graph, ModelError> {
        let check = Check("lora");
        check.positive(&[("rank", self.rank)])?;
        check.above_zero("alpha", self.alpha)?;
        let adapted = self.layers(model)?;
        let mut builder = Builder::new(model.name());
        let mut values: Vec<ValueId> = Vec::with_capacity(model.values().len());
        for (id, layer) in model.layers().iter() {
            let operands: Vec<_> = layer.operands.iter().map(|operand| values[operand.index()]).collect();
            let name = model.layer_name(id);
            let results = match (&layer.op, layer.op.get::<Linear>()) {
                (op, _) if op.is_leaf() => {
                    vec![builder.leaf(name, op.clone(), model.ty(layer.results[0]).clone())?]
                }
                (_, Some(linear)) if adapted.contains(&id) => {
                    let widest = [("rank", self.rank), ("layer inputs", builder.shape(operands[0]).last())];
                    check.bounded(&widest)?;
                    vec![self.adapted(&mut builder, name, linear, &operands)?]
                }
                // Results of several are numbered.
                (op, _) if layer.results.len() > 1 => {
                    builder.add(name.strip_suffix(".0").unwrap_or(name), op.clone(), &operands)?
                }
                (op, _) => builder.add(name, op.clone(), &operands)?,
            };
            values.extend(results);
        }
        for update in model.updates() {
            builder.update(values[update.state.index()], values[update.new.index()])?;
        }
        let outputs: Vec<_> = model.outputs().iter().map(|output| values[output.index()]).collect();
        Ok(builder.finish(outputs))
    }

    fn layers(&self, model: &Graph) -> Result<Vec<LayerId>, ModelError> {
        let candidates = candidates(model);
        let names = || candidates.iter().map(|&id| model.layer_name(id));
        let usual: Vec<String> = Lora::USUAL.map(String::from).to_vec();
        let patterns = if self.patterns.is_empty() { &usual } else { &self.patterns };
        let mut globs = Vec::new();
        for pattern in patterns {
            let unclosed = || ModelError::Pattern { pattern: pattern.clone() };
            let whole = Glob::new(pattern).ok_or_else(unclosed)?;
            let tail = Glob::new(&format!("*.{pattern}")).ok_or_else(unclosed)?;
            let matches = |name: &str| whole.matches(name) || tail.matches(name);
            if !self.patterns.is_empty() && !names().any(matches) {
                let close = tail.closest(names());
                return Err(ModelError::NoModule { pattern: pattern.clone(), close });
            }
            globs.extend([whole, tail]);
        }
        let is_adapted = |id: &LayerId| globs.iter().any(|glob| glob.matches(model.layer_name(*id)));
        let adapted: Vec<LayerId> = candidates.iter().copied().filter(is_adapted).collect();
        match (adapted.is_empty(), globs.first()) {
            (true, Some(glob)) => {
                let close = glob.closest(names());
                Err(ModelError::NoModule { pattern: patterns.join(","), close })
            }
            _ => Ok(adapted),
        }
    }

    fn adapted(
        &self,
        model: &mut Builder,
        name: &str,
        linear: &Linear,
        operands: &[ValueId],
    ) -> Result<ValueId, BuildError> {
        let plain = Linear { transposed: linear.transposed, activation: Activation::None };
        let base = model.add_one(&format!("{name}.base_layer"), plain, operands)?;
        let (x, inputs, outputs) = (operands[0], model.shape(operands[0]).last(), model.shape(base).last());
        let init = Init::Uniform(1.0 / (inputs as f32).sqrt());
        let down = model.param(&format!("{name}.lora_A.weight"), [self.rank, inputs], init)?;
        let up = model.param(&format!("{name}.lora_B.weight"), [outputs, self.rank], Init::Zeros)?;
        let small = model.linear(&format!("{name}.lora_A"), x, down, None)?;
        let mut share = model.linear(&format!("{name}.lora_B"), small, up, None)?;
        if self.scale() != 1.0 {
            share = model.unary(&format!("{name}.lora"), Unary::MulScalar(self.scale()), share)?;
        }
        match linear.activation {
            Activation::None => model.binary(name, Binary::Add, base, share),
            activation => {
                let sum = model.binary(&format!("{name}.adapted"), Binary::Add, base, share)?;
                model.unary(name, Unary::Act(activation), sum)
            }
        }
    }
}

/// Linear layers that are called as their weight and alone use it: no output heads.
fn candidates(model: &Graph) -> Vec<LayerId> {
    let mut uses = vec![0; model.values().len()];
    let operands = model.layers().iter().flat_map(|(_, layer)| &layer.operands);
    operands.for_each(|operand| uses[operand.index()] += 1);
    let is_candidate = |id: &LayerId| {
        let layer = &model.layers()[*id];
        let weight = layer.operands.get(1).filter(|_| layer.op.get::<Linear>().is_some());
        weight.is_some_and(|&weight| {
            let owner = model.values()[weight].name.strip_suffix(".weight");
            let is_param = matches!(model.op_of(weight), Op::Param(_));
            is_param && owner == Some(model.layer_name(*id)) && uses[weight.index()] == 1
        })
    };
    model.layers().ids().filter(is_candidate).collect()
}

fn describe(model: &Graph, id: LayerId) -> AdaptedModule {
    let layer = &model.layers()[id];
    let features = |value: ValueId| model.ty(value).shape.last();
    let transposed = layer.op.get::<Linear>().is_some_and(|linear| linear.transposed);
    let (inputs, outputs) = (features(layer.operands[0]), features(layer.results[0]));
    AdaptedModule { name: model.layer_name(id).into(), inputs, outputs, transposed }
}

impl fmt::Display for Lora {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.rank, self.alpha)?;
        self.patterns.iter().try_for_each(|pattern| write!(f, ",{pattern}"))
    }
}

impl FromStr for Lora {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split(',').map(str::trim);
        let rank = parts.next().and_then(|rank| rank.parse().ok()).filter(|&rank| rank > 0).ok_or(())?;
        let alpha = parts.next().map_or(Ok(rank as f32), |alpha| alpha.parse().map_err(drop))?;
        let patterns: Vec<String> = parts.map(String::from).collect();
        let is_sound = f32::is_finite(alpha) && alpha > 0.0 && !patterns.iter().any(String::is_empty);
        is_sound.then_some(Lora { rank, alpha, patterns }).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;

    fn graph(family: &str) -> Graph {
        ModelConfig::preset(family, "nano").unwrap().training_graph(2, 16).unwrap()
    }

    fn adapted(family: &str, lora: &str) -> Result<Graph, String> {
        let lora: Lora = lora.parse().unwrap();
        lora.adapt(&graph(family)).map_err(|error| error.to_string())
    }

    fn adapters(graph: &Graph) -> Vec<&str> {
        let params = graph.leaves(|op| matches!(op, Op::Param(_)));
        params
            .map(|value| graph.values()[value].name.as_str())
            .filter(|name| name.contains(".lora_"))
            .collect()
    }

    #[test]
    fn texts_read_as_themselves() {
        for (text, wanted) in [("8", "8,8"), ("8,16", "8,16"), ("4, 2.5,*.q,mlp.*", "4,2.5,*.q,mlp.*")] {
            assert_eq!(text.parse::<Lora>().unwrap().to_string(), wanted);
        }
        for text in ["", "0", "x", "8,", "8,-1", "8,nan", "8,16,", "8,16,a,,b"] {
            assert_eq!(text.parse::<Lora>(), Err(()), "{text}");
        }
    }

    #[test]
    fn the_usual_layers_of_each_family_are_adapted_and_the_rest_stays() {
        let llama = adapted("llama", "2").unwrap();
        assert_eq!(llama.verify(), Ok(()));
        assert_eq!(adapters(&llama).len(), 4 * 2 * 2);
        assert!(adapters(&llama)[0].ends_with("layers.0.self_attn.q_proj.lora_A.weight"));
        let gpt2 = adapted("gpt2", "2,4").unwrap();
        assert_eq!(adapters(&gpt2).len(), 4 * 3 * 2);
        let ty = |name: &str| gpt2.ty(gpt2.find(name).unwrap()).to_string();
        assert_eq!(ty("transformer.h.3.attn.v.lora_A.weight"), "f32[2, 128]");
        assert_eq!(ty("transformer.h.3.attn.v.lora_B.weight"), "f32[128, 2]");
        assert_eq!(ty("transformer.h.0.attn.q.lora"), "f32[2, 16, 128]");
        let names = |graph: &Graph| -> Vec<String> {
            graph.values().iter().map(|(_, value)| value.name.clone()).collect()
        };
        let kept = names(&gpt2);
        assert!(names(&graph("gpt2")).iter().all(|name| kept.contains(name)), "no name is lost");
        assert_eq!(Graph::parse(gpt2.to_string(), phalanx_ops::operators()), Ok(gpt2));
    }

    #[test]
    fn an_activation_follows_the_sum() {
        let graph = adapted("gpt2", "2,2,*.h.0.mlp.c_fc").unwrap();
        assert_eq!(adapters(&graph).len(), 2);
        let result = graph.find("transformer.h.0.mlp.c_fc").unwrap();
        let layer = &graph.layers()[graph.values()[result].layer];
        assert_eq!(layer.op.to_text().0, Unary::Act(Activation::GeluTanh).word());
        let inner = graph.find("transformer.h.0.mlp.c_fc.adapted").unwrap();
        assert_eq!(layer.operands, [inner]);
    }

    #[test]
    fn patterns_that_match_no_layer_name_near_ones() {
        let error = adapted("llama", "2,2,q_prj").unwrap_err();
        assert!(
            error.contains("`q_prj` matches no linear layer") && error.contains("self_attn.q_proj`"),
            "{error}"
        );
        assert!(adapted("llama", "2,2,lm_head").is_err(), "a tied head is no layer of its own");
        assert!(adapted("llama", "2,2,a[").unwrap_err().contains("no pattern"));
        assert!(adapted("mlp", "2").unwrap_err().contains("layers.0"));
    }
}
