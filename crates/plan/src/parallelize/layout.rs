//! Layouts: which mesh axes cut, copy and sum a value; and the devices that follow from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_ir::parallel::{DeviceGroup, DeviceId, ParallelType};
use phalanx_ir::{Id, Op, TensorType};

/// A position in the list of mesh axes.
pub(super) type MeshAxis = usize;

/// A stage of the pipeline, or all of them.
pub(super) type Stage = Option<usize>;

/// What every mesh axis does to a value; axes that are not named do nothing: the devices along them hold the same.
///
/// In a list of axes the outermost comes first, as in the digits of a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Layout {
    /// Axes that count partial sums.
    pub(super) sum: Vec<MeshAxis>,
    /// Axes that count copies.
    pub(super) copy: Vec<MeshAxis>,
    /// For every dimension the axes that cut it.
    pub(super) dims: Vec<Vec<MeshAxis>>,
}

impl Layout {
    /// A layout that only cuts.
    pub(super) fn cut(dims: Vec<Vec<MeshAxis>>) -> Layout {
        Layout { dims, ..Layout::default() }
    }

    /// All axes named, in the order in which they count tiles.
    pub(super) fn axes(&self) -> Vec<MeshAxis> {
        [&self.sum, &self.copy].into_iter().chain(&self.dims).flatten().copied().collect()
    }
}

/// The devices: their grid, and lists of groups already made.
pub(super) struct Machine {
    sizes: Vec<usize>,
    /// The axis whose places are stages.
    pipeline: Option<MeshAxis>,
    /// Sites are shared by all layers of one layout: there are few lists, and each may be long.
    groups: BTreeMap<(Stage, Vec<MeshAxis>), Arc<[DeviceGroup]>>,
}

impl Machine {
    pub(super) fn new(sizes: Vec<usize>, pipeline: Option<MeshAxis>) -> Machine {
        Machine { sizes, pipeline, groups: BTreeMap::new() }
    }

    /// How many places `axes` have together.
    pub(super) fn degree(&self, axes: &[MeshAxis]) -> usize {
        axes.iter().map(|&axis| self.sizes[axis]).product()
    }

    /// The extent of one axis.
    pub(super) fn size(&self, axis: MeshAxis) -> usize {
        self.sizes[axis]
    }

    /// The tiling of a tensor in this layout; `None` if a dimension cannot be cut like this.
    pub(super) fn tiling(&self, ty: &TensorType, layout: &Layout) -> Option<ParallelType> {
        let degrees: Vec<usize> = layout.dims.iter().map(|axes| self.degree(axes)).collect();
        ParallelType::tiled(ty, &degrees, self.degree(&layout.sum), self.degree(&layout.copy))
    }

    /// For every place on `axes`, the last fastest, all devices of the stage that are there.
    pub(super) fn groups(&mut self, stage: Stage, axes: &[MeshAxis]) -> Arc<[DeviceGroup]> {
        let key = (stage, axes.to_vec());
        if let Some(groups) = self.groups.get(&key) {
            return Arc::clone(groups);
        }
        let fixed = self.pipeline.filter(|_| stage.is_some());
        let free = (0..self.sizes.len()).filter(|axis| !axes.contains(axis) && Some(*axis) != fixed);
        let together = self.numbers(&free.collect::<Vec<_>>());
        let start = fixed.zip(stage).map_or(0, |(axis, stage)| stage * self.stride(axis));
        let group = |first: usize| {
            DeviceGroup::new(together.iter().map(|next| DeviceId::from_index(start + first + next)))
        };
        let groups: Arc<[DeviceGroup]> = self.numbers(axes).into_iter().map(group).collect();
        self.groups.insert(key, Arc::clone(&groups));
        groups
    }

    /// Device numbers of all places on some axes, the others at their first place.
    fn numbers(&self, axes: &[MeshAxis]) -> Vec<usize> {
        axes.iter().fold(vec![0], |numbers, &axis| {
            let places =
                |number: usize| (0..self.sizes[axis]).map(move |place| number + place * self.stride(axis));
            numbers.into_iter().flat_map(places).collect()
        })
    }

    fn stride(&self, axis: MeshAxis) -> usize {
        self.sizes[axis + 1..].iter().product()
    }
}

/// The shortest chain of parallel operators from one layout to another, with the layout after each.
///
/// Sums come first, since everything after them is smaller; copies last, since everything before them is done once.
pub(super) fn chain(machine: &Machine, from: &Layout, to: &Layout, regather: bool) -> Vec<(Op, Layout)> {
    let mut now = from.clone();
    let mut steps = Vec::new();
    if now.sum != to.sum {
        let degree = machine.degree(&now.sum);
        now.sum.clear();
        steps.push((Op::Reduction { degree }, now.clone()));
    }
    for dim in 0..now.dims.len() {
        let kept = common(&now.dims[dim], &to.dims[dim]);
        if kept < now.dims[dim].len() {
            let degree = machine.degree(&now.dims[dim].split_off(kept));
            steps.push((Op::Combine { dim, degree, regather }, now.clone()));
        }
    }
    for dim in 0..now.dims.len() {
        let new = &to.dims[dim][now.dims[dim].len()..];
        if !new.is_empty() {
            let degree = machine.degree(new);
            now.dims[dim].extend(new);
            steps.push((Op::Repartition { dim, degree }, now.clone()));
        }
    }
    if now.copy != to.copy {
        let degree = machine.degree(&to.copy);
        now.copy = to.copy.clone();
        steps.push((Op::Replicate { degree }, now.clone()));
    }
    steps
}

/// How many axes two lists begin with alike.
fn common(a: &[MeshAxis], b: &[MeshAxis]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(groups: &[DeviceGroup]) -> String {
        groups.iter().map(DeviceGroup::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn groups_are_all_devices_that_agree_on_the_axes() {
        let mut machine = Machine::new(vec![2, 2, 3], Some(0));
        assert_eq!(text(&machine.groups(None, &[])), "dev[0-11]");
        assert_eq!(text(&machine.groups(Some(1), &[])), "dev[6-11]");
        assert_eq!(text(&machine.groups(Some(1), &[1])), "dev[6-8] dev[9-11]");
        assert_eq!(text(&machine.groups(None, &[1])), "dev[0-2,6-8] dev[3-5,9-11]");
        assert_eq!(text(&machine.groups(Some(0), &[2, 1])), "dev0 dev3 dev1 dev4 dev2 dev5");
    }

    #[test]
    fn chains_keep_what_both_layouts_begin_with() {
        let machine = Machine::new(vec![2, 3, 5], None);
        let words = |from: &Layout, to: &Layout| {
            let steps = chain(&machine, from, to, false);
            assert!(steps.last().is_none_or(|(_, last)| last == to));
            steps.iter().map(|(op, _)| op.to_text().0).collect::<Vec<_>>().join(" ")
        };
        let cut = |dims: [&[usize]; 2]| Layout::cut(dims.map(<[usize]>::to_vec).to_vec());
        assert_eq!(words(&cut([&[0], &[]]), &cut([&[0], &[]])), "");
        assert_eq!(words(&cut([&[0, 1], &[]]), &cut([&[0], &[]])), "combine");
        assert_eq!(words(&cut([&[0, 1], &[]]), &cut([&[1], &[]])), "combine repartition");
        assert_eq!(words(&cut([&[0], &[]]), &cut([&[], &[0]])), "combine repartition");
        let sum = Layout { sum: vec![2], ..cut([&[0], &[]]) };
        let copy = Layout { copy: vec![2], ..cut([&[0], &[1]]) };
        assert_eq!(words(&sum, &copy), "reduction repartition replicate");
    }
}
