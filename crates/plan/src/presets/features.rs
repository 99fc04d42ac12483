//! Tensor parallelism: cuts classes of features that one layer makes and another takes in.
//!
//! Every such class gives copies where it is made and one sum where it is taken in, and nothing moves between; of a
//! Transformer these are heads, hidden features and the vocabulary. A parameter is cut along one dimension: where two
//! classes want the same one, the class that comes first in the model has it, residual streams after all others.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_ir::Op;
use phalanx_ir::graph::{Graph, ValueId};

use super::specs::Specs;
use super::weights::{Role, WeightUse, weight_uses};
use crate::PlanError;
use crate::classes::{Class, Classes};

/// The classes that tensor parallelism cuts.
pub(crate) struct Features<'a> {
    pub(super) model: &'a Graph,
    pub(super) classes: &'a Classes<'a>,
    /// What all layers do along classes.
    pub(super) uses: Vec<WeightUse>,
    /// Each with whether it is a vocabulary: ended by ids or labels, taken in by no layer. It may stay whole.
    chosen: BTreeMap<Class, bool>,
    /// How many classes of parameters were not chosen, by the reason.
    found: Found,
}

#[derive(Default)]
struct Found {
    whole: usize,
    of_inputs: usize,
    one_sided: usize,
    shared: usize,
}

impl<'a> Features<'a> {
    /// Chooses the classes of `model`.
    pub(crate) fn new(model: &'a Graph, classes: &'a Classes<'a>) -> Self {
        let (uses, members) = (weight_uses(model, classes), members(model, classes));
        let (chosen, found) = (BTreeMap::new(), Found::default());
        let mut features = Features { model, classes, uses, chosen, found };
        let fixed: BTreeSet<Class> = classes.batch().into_iter().chain(classes.sequence()).collect();
        let mut roles: BTreeMap<Class, Vec<Role>> = BTreeMap::new();
        features.uses.iter().for_each(|used| roles.entry(used.class).or_default().push(used.role));
        let mut taken: BTreeSet<ValueId> = BTreeSet::new();
        let (streams, others): (Vec<Class>, Vec<Class>) =
            features.uses.iter().map(|used| used.class).partition(|class| features.is_stream(*class));
        for class in others.into_iter().chain(streams) {
            let (Some(roles), Some(params)) = (roles.remove(&class), members.get(&class)) else { continue };
            let is_free = params.iter().all(|(param, count)| *count == 1 && !taken.contains(param));
            let has = |role| roles.contains(&role);
            let found = &mut features.found;
            match () {
                () if classes.is_whole(class) => found.whole += 1,
                () if fixed.contains(&class) => found.of_inputs += 1,
                () if !has(Role::Makes) || roles.iter().all(|role| *role == Role::Makes) => {
                    found.one_sided += 1
                }
                () if !is_free => found.shared += 1,
                () => {
                    taken.extend(params.keys());
                    features.chosen.insert(class, !has(Role::TakesIn));
                }
            }
        }
        features
    }

    /// Whether a class is made again after it was taken in, as a residual stream is.
    fn is_stream(&self, class: Class) -> bool {
        let layers = |role: Role| {
            let uses = self.uses.iter().filter(move |used| used.class == class && used.role == role);
            uses.map(|used| used.layer)
        };
        layers(Role::TakesIn).next().is_some_and(|taken| layers(Role::Makes).any(|made| made > taken))
    }

    /// The dimension along which a parameter is cut.
    pub(super) fn cut_of(&self, param: ValueId) -> Option<usize> {
        let mut dims = 0..self.model.ty(param).shape.rank();
        dims.find(|&dim| self.chosen.contains_key(&self.classes.of(param, dim)))
    }

    /// The dimension of a parameter along a vocabulary, which stays whole where it does not divide.
    pub(crate) fn vocabulary_of(&self, param: ValueId) -> Option<usize> {
        self.cut_of(param).filter(|&dim| self.chosen[&self.classes.of(param, dim)])
    }

    /// Cuts every parameter along its class; says what was looked for and what was found if there is nothing to cut.
    pub(super) fn cut(&self, specs: &mut Specs<'_>, axis: &str, size: usize) -> Result<(), PlanError> {
        let mut is_cut = false;
        let params = self.model.leaves(|op| matches!(op, Op::Param(_)));
        for (param, dim) in params.filter_map(|param| Some((param, self.cut_of(param)?))) {
            if self.vocabulary_of(param).is_none() || specs.divides(param, dim, size) {
                specs.shard(param, dim, axis, size)?;
                is_cut = true;
            }
        }
        if is_cut { Ok(()) } else { Err(self.nothing(size)) }
    }

    /// The error for a model without anything to cut.
    fn nothing(&self, size: usize) -> PlanError {
        let Found { whole, of_inputs, one_sided, shared } = self.found;
        let reasons = [
            (whole, "are needed whole by a layer such as a norm"),
            (of_inputs, "are dimensions of inputs"),
            (one_sided, "are only made or only taken in"),
            (shared, "want a parameter that is cut along another dimension"),
            (self.chosen.len(), "are vocabularies that do not divide"),
        ];
        let reasons = reasons.into_iter().filter(|(count, _)| *count > 0);
        let found: Vec<_> = reasons.map(|(count, reason)| format!("{count} {reason}")).collect();
        let found = if found.is_empty() { "there is none".into() } else { found.join(", ") };
        PlanError::NoFeatures { model: self.model.name().into(), size, found }
    }
}

/// The parameters along each class, each with how many of its dimensions are.
fn members(model: &Graph, classes: &Classes<'_>) -> BTreeMap<Class, BTreeMap<ValueId, usize>> {
    let mut members: BTreeMap<Class, BTreeMap<ValueId, usize>> = BTreeMap::new();
    for param in model.leaves(|op| matches!(op, Op::Param(_))) {
        for dim in 0..model.ty(param).shape.rank() {
            *members.entry(classes.of(param, dim)).or_default().entry(param).or_default() += 1;
        }
    }
    members
}
