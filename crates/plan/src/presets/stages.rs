//! Pipelines: the layers of a model in consecutive stages.
//!
//! Stages end where one activation is alive. Blocks that repeat under numbers are dealt evenly; without such blocks the
//! stages are as equal as they can be by an estimate of their work.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_ir::graph::{Graph, Layer, LayerId, ValueId};
use phalanx_ir::{Id, Op};

use crate::PlanError;
use crate::classes::shapes;
use crate::parallelize::stages_of;
use crate::plan::{Pipeline, Plan};

/// The stages of `model` along `axis`.
pub(super) fn pipeline(model: &Graph, axis: &str, stages: usize) -> Result<Pipeline, PlanError> {
    let ends = single_live(model);
    let blocks = repeated_blocks(model, &ends);
    let limits = match &blocks {
        Some(blocks) => block_ends(model, blocks, stages)?,
        None => balanced_ends(model, &ends, stages)?,
    };
    let stage_of = layer_stages(model, &limits);
    let prefix = blocks.map_or(String::new(), |blocks| blocks.prefix);
    for naming in [Naming::Prefixes, Naming::Modules, Naming::Layers] {
        let stages = patterns(model, &stage_of, stages, &prefix, naming);
        let pipeline = Pipeline { axis: axis.into(), stages };
        if gives(model, &pipeline, &stage_of) {
            return Ok(pipeline);
        }
    }
    unreachable!("patterns of single names give every layer its stage")
}

/// How layers are named by patterns, from the most readable on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// All names that begin alike.
    Prefixes,
    /// A module and all names below it.
    Modules,
    /// Every layer by its own name.
    Layers,
}

/// Blocks that repeat: layers called `prefix.0`, `prefix.0.*`, `prefix.1` and so on.
struct RepeatedBlocks {
    prefix: String,
    /// The last layer of every block.
    last: Vec<LayerId>,
}

/// The layers after which one activation is alive: computed from inputs, and needed by a later layer.
fn single_live(model: &Graph) -> BTreeSet<LayerId> {
    let mut last_use: BTreeMap<ValueId, LayerId> = BTreeMap::new();
    let mut depends: BTreeSet<ValueId> = BTreeSet::new();
    for (id, layer) in model.layers().iter() {
        last_use.extend(layer.operands.iter().map(|&operand| (operand, id)));
        if matches!(layer.op, Op::Input) || layer.operands.iter().any(|operand| depends.contains(operand)) {
            depends.extend(&layer.results);
        }
    }
    let mut live: BTreeSet<ValueId> = BTreeSet::new();
    let mut ends = BTreeSet::new();
    for (id, layer) in model.layers().iter().filter(|(_, layer)| !layer.op.is_leaf()) {
        live.extend(layer.results.iter().filter(|result| depends.contains(*result)));
        live.retain(|value| last_use.get(value).is_some_and(|last| *last > id));
        if live.len() == 1 {
            ends.insert(id);
        }
    }
    ends
}

/// The outermost blocks that repeat, each behind a layer after which one activation is alive; none if there are several
/// kinds.
fn repeated_blocks(model: &Graph, ends: &BTreeSet<LayerId>) -> Option<RepeatedBlocks> {
    let mut found: BTreeMap<String, Vec<LayerId>> = BTreeMap::new();
    for (id, _) in model.layers().iter().filter(|(_, layer)| !layer.op.is_leaf()) {
        let Some((prefix, block)) = numbered(model.layer_name(id)) else { continue };
        let last = found.entry(prefix).or_default();
        match block {
            block if block + 1 == last.len() => last[block] = id,
            block if block == last.len() => last.push(id),
            // Blocks that do not follow each other are no pipeline.
            _ => return None,
        }
    }
    let mut found = found.into_iter().filter(|(_, last)| last.len() > 1);
    let (prefix, last) = found.next()?;
    let (_, between) = last.split_last()?;
    let is_one = found.next().is_none() && between.iter().all(|end| ends.contains(end));
    is_one.then_some(RepeatedBlocks { prefix, last })
}

/// What stands before the first number of a name, and the number.
fn numbered(name: &str) -> Option<(String, usize)> {
    let parts: Vec<&str> = name.split('.').collect();
    let at = parts.iter().skip(1).position(|part| is_number(part))? + 1;
    Some((parts[..at].join("."), parts[at].parse().ok()?))
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// The last layer of every stage but the last, if blocks are dealt evenly.
fn block_ends(model: &Graph, blocks: &RepeatedBlocks, stages: usize) -> Result<Vec<LayerId>, PlanError> {
    let count = blocks.last.len();
    if count < stages {
        return Err(PlanError::FewBlocks { model: model.name().into(), blocks: count, stages });
    }
    let is_end = |block: &usize| (block + 1) * stages / count > block * stages / count;
    Ok((0..count - 1).filter(is_end).map(|block| blocks.last[block]).collect())
}

/// The last layer of every stage but the last, such that the longest stage is as short as can be: dynamic programming over
/// the places where a stage may end. Of equally good ones those with earlier ends are taken.
fn balanced_ends(model: &Graph, ends: &BTreeSet<LayerId>, stages: usize) -> Result<Vec<LayerId>, PlanError> {
    let last = LayerId::from_index(model.layers().len() - 1);
    let ends: Vec<LayerId> = ends.iter().copied().filter(|&end| end != last).collect();
    if ends.len() + 1 < stages {
        let model = model.name().into();
        return Err(PlanError::FewPlaces { model, places: ends.len(), stages });
    }
    // The work up to each place, and up to the end of the model.
    let mut total = 0.0;
    let sums: Vec<f64> = model
        .layers()
        .ids()
        .map(|layer| {
            total += work(model, layer);
            total
        })
        .collect();
    let upto: Vec<f64> = ends.iter().chain([&last]).map(|end| sums[end.index()]).collect();
    // For every place the longest of the stages that end there, and where the one before ends.
    let mut best: Vec<Vec<(f64, usize)>> = vec![upto.iter().map(|&work| (work, 0)).collect()];
    for stage in 1..stages {
        let before = &best[stage - 1];
        let choice = |place: usize| {
            let longest = |from: usize| before[from].0.max(upto[place] - upto[from]);
            let places = (stage - 1..place).map(|from| (longest(from), from));
            places
                .reduce(|best, next| if next.0 < best.0 { next } else { best })
                .unwrap_or((f64::INFINITY, 0))
        };
        let row = (0..upto.len()).map(choice).collect();
        best.push(row);
    }
    let mut place = upto.len() - 1;
    let mut chosen = Vec::new();
    for stage in (1..stages).rev() {
        place = best[stage][place].1;
        chosen.push(ends[place]);
    }
    chosen.reverse();
    Ok(chosen)
}

/// An estimate of what a layer computes: the points of its iteration space, or the elements it touches if those are more.
fn work(model: &Graph, layer: LayerId) -> f64 {
    let layer = &model.layers()[layer];
    let Some(operator) = layer.op.operator() else { return 0.0 };
    let (operands, results) = (shapes(model, &layer.operands), shapes(model, &layer.results));
    let cuts = operator.cuts(&operands, &results);
    let extent = |limits: &Vec<usize>| limits.iter().max().copied().unwrap_or(1) as f64;
    let points: f64 = cuts.limits(&operands, &results).iter().map(extent).product();
    let elements: usize = operands.iter().chain(&results).map(|shape| shape.elements()).sum();
    points.max(elements as f64)
}

/// The stage of every layer: that of its place, of a parameter that of its first user.
fn layer_stages(model: &Graph, limits: &[LayerId]) -> Vec<usize> {
    let mut stages: Vec<usize> =
        model.layers().ids().map(|layer| limits.iter().filter(|&&end| end < layer).count()).collect();
    for (id, layer) in model.layers().iter().filter(|(_, layer)| layer.op.is_leaf()) {
        let user = model.layers().iter().find(|(_, user)| user.operands.contains(&layer.results[0]));
        stages[id.index()] = user.map_or(0, |(user, _)| stages[user.index()]);
    }
    stages
}

/// Patterns for the layers of every stage.
fn patterns(
    model: &Graph,
    stage_of: &[usize],
    stages: usize,
    blocks: &str,
    naming: Naming,
) -> Vec<Vec<String>> {
    let paths = paths(model, stage_of);
    // The shortest path above a name that has layers of one stage alone; not above the numbers of blocks.
    let coarsest = |name: &str| {
        let mut above = above(name).filter(|path| blocks.is_empty() || !below(blocks, path));
        above.find(|path| paths.get(path).is_some_and(Option::is_some)).map(String::from)
    };
    let mut lists: Vec<Vec<String>> = vec![Vec::new(); stages];
    for (id, layer) in named_layers(model) {
        let name = model.layer_name(id);
        let module = match layer.op {
            Op::Param(_) => name.rsplit_once('.').map_or(name, |(module, _)| module),
            _ => name,
        };
        let module = coarsest(module).filter(|_| naming != Naming::Layers).unwrap_or_else(|| name.into());
        let list = &mut lists[stage_of[id.index()]];
        match list.iter_mut().find(|other| below(&module, other) || below(other, &module)) {
            Some(other) if naming != Naming::Layers => {
                if below(other, &module) {
                    *other = module;
                }
            }
            _ => list.push(module),
        }
    }
    for list in &mut lists {
        let mut seen = BTreeSet::new();
        list.retain(|module| seen.insert(module.clone()));
    }
    let texts =
        |list: Vec<String>| list.into_iter().flat_map(|module| texts_of(model, &paths, module, naming));
    lists.into_iter().map(|list| texts(list).collect()).collect()
}

/// The layers that patterns name.
fn named_layers(model: &Graph) -> impl Iterator<Item = (LayerId, &Layer<()>)> {
    model.layers().iter().filter(|(_, layer)| !matches!(layer.op, Op::Input | Op::Constant(_)))
}

/// Every path with layers below it, with their stage if it is one.
fn paths<'a>(model: &'a Graph, stage_of: &[usize]) -> BTreeMap<&'a str, Option<usize>> {
    let mut paths: BTreeMap<&str, Option<usize>> = BTreeMap::new();
    for (id, _) in named_layers(model) {
        let stage = stage_of[id.index()];
        for path in above(model.layer_name(id)) {
            let known = paths.entry(path).or_insert(Some(stage));
            *known = known.filter(|known| *known == stage);
        }
    }
    paths
}

/// The paths above a name, the shortest first, and the name itself.
fn above(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').map(|(at, _)| at).chain([name.len()]).map(|end| &name[..end])
}

/// Whether `name` is `path` or lies below it.
fn below(name: &str, path: &str) -> bool {
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The patterns that match a module's layers.
fn texts_of(
    model: &Graph,
    paths: &BTreeMap<&str, Option<usize>>,
    module: String,
    naming: Naming,
) -> Vec<String> {
    let is_numbered = module.rsplit('.').next().is_some_and(is_number);
    match naming {
        Naming::Layers => vec![module],
        Naming::Prefixes if !is_numbered => vec![format!("{module}*")],
        _ => {
            let inside = format!("{module}.");
            let has_inside =
                paths.range(inside.as_str()..).next().is_some_and(|(path, _)| path.starts_with(&inside));
            let inside = has_inside.then(|| format!("{module}.*"));
            let own = model.find(&module).map(|_| module);
            own.into_iter().chain(inside).collect()
        }
    }
}

/// Whether the patterns give every layer its stage.
fn gives(model: &Graph, pipeline: &Pipeline, stage_of: &[usize]) -> bool {
    let plan = Plan { pipeline: Some(pipeline.clone()), ..Plan::default() };
    let Ok(found) = stages_of(model, &plan) else { return false };
    found.iter().zip(stage_of).all(|(found, wanted)| found.is_none_or(|found| found == *wanted))
}
