//! One layer on tiled operands: what its parallel rule makes of it, and what the rule's own advice leads to.

use phalanx_ir::graph::{LayerId, VerifyError};
use phalanx_ir::parallel::{
    DeviceGroup, DeviceId, LayerPlacement, ParallelBuilder, ParallelGraph, ParallelType, TilingRule,
};
use phalanx_ir::{Id, Op, OpError};

/// A layer that the verifier accepts.
pub struct Legal {
    pub graph: ParallelGraph,
    pub layer: LayerId,
    pub rule: TilingRule,
    pub results: Vec<ParallelType>,
}

/// The layer with results written as `results`, task number i on device i; its operands are inputs.
fn graph(op: &Op, operands: &[ParallelType], results: &[ParallelType], tasks: usize) -> ParallelGraph {
    let on = |n: usize| {
        LayerPlacement::on((0..n).map(|i| DeviceGroup::one(DeviceId::from_index(i))).collect::<Vec<_>>())
    };
    let mut builder = ParallelBuilder::new("one");
    let leaf =
        |ty: &ParallelType| builder.add(Op::Input, &[], vec![("x".into(), ty.clone())], on(ty.tiles()))[0];
    let values: Vec<_> = operands.iter().map(leaf).collect();
    let results = results.iter().map(|ty| ("y".to_string(), ty.clone())).collect();
    let outputs = builder.add(op.clone(), &values, results, on(tasks));
    builder.finish(outputs)
}

/// What the verifier says about the last layer, the only one that may be wrong.
fn verified(graph: &ParallelGraph) -> Result<(), OpError> {
    match graph.verify().map_err(<[VerifyError; 1]>::try_from) {
        Ok(()) => Ok(()),
        Err(Ok([VerifyError::Op { source, .. }])) => Err(source),
        Err(other) => panic!("{other:?} in {graph}"),
    }
}

/// The layer with the results its rule gives. Shapes must fit; what the verifier and the rule say must agree.
pub fn layer(op: &Op, operands: &[ParallelType]) -> Result<Legal, OpError> {
    let globals: Vec<_> = operands.iter().map(ParallelType::global).collect();
    let shapes = op.infer(&globals).expect("the shapes fit");
    let whole: Vec<_> = shapes.iter().map(ParallelType::whole).collect();
    let unsure = graph(op, operands, &whole, 1);
    let layer = LayerId::from_index(operands.len());
    let rule = match unsure.rule(layer) {
        Ok(rule) => rule,
        Err(error) => {
            assert_eq!(verified(&unsure), Err(error.clone()), "verifier and rule agree on {unsure}");
            return Err(error);
        }
    };
    let tiling = |(ty, map): (_, &phalanx_ir::parallel::TileMap)| map.tiling(ty, &rule.extents);
    let Some(results) = shapes.iter().zip(&rule.results).map(tiling).collect::<Option<Vec<_>>>() else {
        let error = verified(&graph(op, operands, &whole, rule.tasks()));
        return Err(error.expect_err("a result that cannot be cut is refused"));
    };
    let graph = graph(op, operands, &results, rule.tasks());
    verified(&graph)?;
    Ok(Legal { graph, layer, rule, results })
}

/// What a parallel operator makes of a tiling; the verifier must agree with `by`.
fn moved(op: &Op, from: &ParallelType, by: impl Fn(&mut Vec<usize>, &mut usize, &mut usize)) -> ParallelType {
    let mut degrees: Vec<_> = from.dims().iter().map(|dim| dim.degree).collect();
    let (mut sum, mut copy) = (from.sum_degree(), from.copy_degree());
    by(&mut degrees, &mut sum, &mut copy);
    let to = ParallelType::tiled(&from.global(), &degrees, sum, copy).expect("the advice can be followed");
    let (before, after) = (std::slice::from_ref(from), std::slice::from_ref(&to));
    assert_eq!(verified(&graph(op, before, after, to.tiles())), Ok(()));
    to
}

/// The tiling after the parallel operator that `fix` names; `None` if it names none.
pub fn mended(fix: &str, from: &ParallelType) -> Option<ParallelType> {
    let words: Vec<_> = fix.split_whitespace().collect();
    let number = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.parse::<usize>().ok());
    let degree = number("degree=")?;
    assert!(degree > 1, "`{fix}` changes something");
    let dim = number("dim=");
    let op = match (words[1], dim) {
        ("combine", Some(dim)) => Op::Combine { dim, degree, regather: false },
        ("repartition", Some(dim)) => Op::Repartition { dim, degree },
        ("replicate", None) => Op::Replicate { degree },
        ("reduction", None) => Op::Reduction { degree },
        _ => panic!("`{fix}` is a parallel operator"),
    };
    Some(moved(&op, from, |degrees, sum, copy| match op {
        Op::Combine { dim, .. } => degrees[dim] /= degree,
        Op::Repartition { dim, .. } => degrees[dim] *= degree,
        Op::Replicate { .. } => *copy *= degree,
        _ => *sum /= degree,
    }))
}

/// Follows the advice of the errors until the layer is legal or the advice names no parallel operator. Returns the
/// operands of the end. Each step must bring a tiling that was not there before.
pub fn repaired(op: &Op, operands: &[ParallelType]) -> (Vec<ParallelType>, Result<Legal, OpError>) {
    let mut seen = vec![operands.to_vec()];
    loop {
        let operands = seen.last().expect("there is a first").clone();
        let error = match layer(op, &operands) {
            Ok(legal) => return (operands, Ok(legal)),
            Err(error) => error,
        };
        let (name, text) = (op.to_text().0, error.to_string());
        assert!(error.wanted.starts_with(&format!("{name}: ")), "`{text}` names {name}");
        let slot = (0..operands.len()).find(|&slot| op.slot(slot) == error.slot);
        assert!(slot.is_some() || error.slot == "result", "`{text}` names a slot of {name}");
        assert!(!error.found.is_empty() && !error.fix.is_empty(), "`{text}` says what to do");
        let next = slot.and_then(|slot| Some((slot, mended(&error.fix, &operands[slot])?)));
        let Some((slot, better)) = next else { return (operands, Err(error)) };
        let mut after = operands.clone();
        after[slot] = better;
        assert!(!seen.contains(&after), "`{text}` leads back to where it was: {seen:?}");
        assert!(seen.len() <= 8 * operands.len(), "`{text}` does not come to an end: {seen:?}");
        seen.push(after);
    }
}
