//! Tensors of PyTorch as values of the graph.
//!
//! A [`Logical`] says for each dimension that PyTorch sees which dimensions of a value it is made of, outermost first. So
//! permutations, merged and inserted dimensions and stretching cost nothing; a value is moved only where an operator needs
//! an order that it does not have. That keeps the batch outermost and channels innermost, however a module turns its
//! tensors, and lets transposes cancel.

use phalanx_ir::MAX_RANK;
use phalanx_ir::graph::ValueId;
use phalanx_ops::{Broadcast, Reshape, Transpose};

use crate::emit::{Emitter, Made};

/// A factor of a dimension: one dimension of the value, of extent 2 or more; or one along which it is stretched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Atom {
    pub(crate) dim: Option<usize>,
    pub(crate) extent: usize,
}

/// See the head of the file. A dimension of extent 1 has no atoms; every dimension of the value that is longer than 1 is
/// an atom of one dimension.
#[derive(Clone, Debug)]
pub(crate) struct Logical {
    pub(crate) id: ValueId,
    pub(crate) dims: Vec<Vec<Atom>>,
}

fn product(atoms: &[Atom]) -> usize {
    atoms.iter().map(|atom| atom.extent).product()
}

/// Whether none of the atoms is stretched.
pub(crate) fn is_stored(atoms: &[Atom]) -> bool {
    atoms.iter().all(|atom| atom.dim.is_some())
}

impl Logical {
    /// The value `id` as it is.
    pub(crate) fn plain(id: ValueId, shape: &[usize]) -> Logical {
        let atom = |(dim, &extent): (usize, &usize)| match extent {
            1 => Vec::new(),
            _ => vec![Atom { dim: Some(dim), extent }],
        };
        Logical { id, dims: shape.iter().enumerate().map(atom).collect() }
    }

    /// The extents that PyTorch sees.
    pub(crate) fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(|atoms| product(atoms)).collect()
    }

    pub(crate) fn rank(&self) -> usize {
        self.dims.len()
    }

    pub(crate) fn permuted(&self, order: &[usize]) -> Logical {
        Logical { id: self.id, dims: order.iter().map(|&dim| self.dims[dim].clone()).collect() }
    }

    /// With a dimension of extent 1 in front of dimension `at`.
    pub(crate) fn unsqueezed(&self, at: usize) -> Logical {
        let mut dims = self.dims.clone();
        dims.insert(at, Vec::new());
        Logical { id: self.id, dims }
    }

    /// With dimensions of extent 1 in front, up to `rank`.
    pub(crate) fn padded(&self, rank: usize) -> Logical {
        let missing = rank.saturating_sub(self.rank());
        let dims = std::iter::repeat_n(Vec::new(), missing).chain(self.dims.iter().cloned()).collect();
        Logical { id: self.id, dims }
    }

    /// Without dimension `dim`, whose extent is 1.
    pub(crate) fn squeezed(&self, dim: usize) -> Logical {
        let mut dims = self.dims.clone();
        dims.remove(dim);
        Logical { id: self.id, dims }
    }

    /// Stretched to `shape`, innermost dimensions aligned.
    pub(crate) fn expanded(&self, shape: &[usize]) -> Logical {
        let mut wide = self.padded(shape.len());
        for (atoms, &extent) in wide.dims.iter_mut().zip(shape) {
            if atoms.is_empty() && extent != 1 {
                atoms.push(Atom { dim: None, extent });
            }
        }
        wide
    }

    /// Another value with the same dimensions.
    pub(crate) fn with_id(&self, id: ValueId) -> Logical {
        Logical { id, dims: self.dims.clone() }
    }

    /// All atoms that are dimensions of the value, in its order.
    pub(crate) fn stored(&self) -> Vec<Atom> {
        let mut atoms: Vec<Atom> =
            self.dims.iter().flatten().filter(|atom| atom.dim.is_some()).copied().collect();
        atoms.sort_by_key(|atom| atom.dim);
        atoms
    }
}

/// Moving values.
impl Emitter {
    /// A value with one dimension for each group of atoms, in this order. Stretched atoms are 1 there, unless `full` says
    /// otherwise or others are in the group.
    pub(crate) fn arrange(&mut self, x: &Logical, groups: &[Vec<Atom>], full: bool) -> Made<ValueId> {
        let stored: Vec<usize> = groups.iter().flatten().filter_map(|atom| atom.dim).collect();
        let mut id = x.id;
        if !stored.is_sorted() {
            let rank = self.builder.shape(id).rank();
            let rest = (0..rank).filter(|dim| !stored.contains(dim));
            let perm: Vec<usize> = stored.iter().copied().chain(rest).collect();
            id = self.moved(id, Transpose { perm })?;
        }
        let is_spread = |group: &Vec<Atom>| {
            group.iter().any(|atom| atom.dim.is_none())
                && (full || group.iter().any(|atom| atom.dim.is_some()))
        };
        let merged: Vec<usize> = groups
            .iter()
            .map(|group| group.iter().filter(|atom| is_spread(group) || atom.dim.is_some()))
            .map(|atoms| atoms.map(|atom| atom.extent).product())
            .collect();
        if groups.iter().any(is_spread) {
            id = self.spread(id, groups, is_spread)?;
        }
        self.reshaped(id, &merged)
    }

    /// Stretches a value whose stored atoms have the order of the groups.
    fn spread(
        &mut self,
        id: ValueId,
        groups: &[Vec<Atom>],
        is_spread: impl Fn(&Vec<Atom>) -> bool,
    ) -> Made<ValueId> {
        // Runs of atoms that are all stored or all stretched: the extent before, and the one after.
        let mut runs: Vec<[usize; 2]> = Vec::new();
        for group in groups {
            let first = runs.len();
            for atom in group {
                let grows = atom.dim.is_none();
                let before = if grows { 1 } else { atom.extent };
                let after = if grows && !is_spread(group) { 1 } else { atom.extent };
                match runs.get_mut(first..).and_then(<[_]>::last_mut) {
                    Some(run) if (run[0] != run[1]) == (before != after) => {
                        *run = [run[0] * before, run[1] * after];
                    }
                    _ => runs.push([before, after]),
                }
            }
        }
        if runs.len() > MAX_RANK {
            return self.unsupported(format!(
                "it needs a tensor of {} dimensions, more than {MAX_RANK}: reshape it first",
                runs.len()
            ));
        }
        let id = self.reshaped(id, &runs.iter().map(|run| run[0]).collect::<Vec<_>>())?;
        let shape: Vec<usize> = runs.iter().map(|run| run[1]).collect();
        self.moved(id, Broadcast { shape: shape.into() })
    }

    /// The value in another shape, or itself if it has that.
    pub(crate) fn reshaped(&mut self, id: ValueId, shape: &[usize]) -> Made<ValueId> {
        if self.builder.shape(id).dims() == shape {
            return Ok(id);
        }
        if shape.len() > MAX_RANK {
            return self.unsupported(format!(
                "it needs a tensor of {} dimensions, more than {MAX_RANK}: reshape it first",
                shape.len()
            ));
        }
        self.moved(id, Reshape { shape: shape.to_vec().into() })
    }

    /// One dimension of the value for each of these dimensions, in this order, and nothing stretched.
    pub(crate) fn ordered(&mut self, x: &Logical, order: &[usize]) -> Made<ValueId> {
        let groups: Vec<Vec<Atom>> = order.iter().map(|&dim| x.dims[dim].clone()).collect();
        self.arrange(x, &groups, true)
    }

    /// The value as PyTorch sees it.
    pub(crate) fn plain(&mut self, x: &Logical) -> Made<ValueId> {
        self.ordered(x, &(0..x.rank()).collect::<Vec<_>>())
    }

    /// The same tensor with `wanted` dimensions innermost, one dimension of the value each; the others stay as they lie.
    pub(crate) fn innermost(&mut self, x: &Logical, wanted: &[usize]) -> Made<Logical> {
        let mut outer: Vec<Vec<Atom>> = Vec::new();
        for atom in x.stored() {
            let home = x.dims.iter().position(|atoms| atoms.contains(&atom)).unwrap_or(0);
            if wanted.contains(&home) {
                continue;
            }
            outer.push(vec![atom]);
        }
        while outer.len() + wanted.len() > MAX_RANK {
            if !merge_neighbours(&mut outer, x) {
                return self.unsupported(format!(
                    "it needs a tensor of {} dimensions, more than {MAX_RANK}: reshape it first",
                    outer.len() + wanted.len()
                ));
            }
        }
        let inner = wanted.iter().map(|&dim| x.dims[dim].clone());
        let groups: Vec<Vec<Atom>> = outer.iter().cloned().chain(inner).collect();
        let id = self.arrange(x, &groups, true)?;
        let mut dims = vec![Vec::new(); x.rank()];
        for (dim, atoms) in x.dims.iter().enumerate() {
            if let Some(place) = wanted.iter().position(|&wanted| wanted == dim) {
                let extent = product(atoms);
                let own = Atom { dim: Some(outer.len() + place), extent };
                dims[dim] = if extent == 1 { Vec::new() } else { vec![own] };
                continue;
            }
            dims[dim] = renumbered(atoms, &outer);
        }
        Ok(Logical { id, dims })
    }

    /// The same tensor with dimension `dim` as one dimension of the value; which one.
    pub(crate) fn single(&mut self, x: &Logical, dim: usize) -> Made<(Logical, usize)> {
        if let [Atom { dim: Some(own), .. }] = x.dims[dim][..] {
            return Ok((x.clone(), own));
        }
        let mut groups: Vec<Vec<Atom>> = x
            .stored()
            .into_iter()
            .filter(|atom| !x.dims[dim].contains(atom))
            .map(|atom| vec![atom])
            .collect();
        // Where its first atom lies, else in front of the next dimension that is stored.
        let next = x.dims[dim..].iter().flatten().find_map(|atom| atom.dim);
        while groups.len() >= MAX_RANK {
            if !merge_neighbours(&mut groups, x) {
                return self.unsupported(format!("it needs a tensor of more than {MAX_RANK} dimensions"));
            }
        }
        let place = match next {
            Some(next) => groups.iter().filter(|group| group[0].dim < Some(next)).count(),
            None => groups.len(),
        };
        groups.insert(place, x.dims[dim].clone());
        let id = self.arrange(x, &groups, true)?;
        let mut dims: Vec<Vec<Atom>> = x.dims.iter().map(|atoms| renumbered(atoms, &groups)).collect();
        let extent = product(&x.dims[dim]);
        dims[dim] = if extent == 1 { Vec::new() } else { vec![Atom { dim: Some(place), extent }] };
        Ok((Logical { id, dims }, place))
    }

    /// The same elements in another shape. Dimensions of the value are split where that is needed, never merged.
    pub(crate) fn reshape(&mut self, x: &Logical, shape: &[usize]) -> Made<Logical> {
        if let Some(regrouped) = self.regroup(x, shape)? {
            return Ok(regrouped);
        }
        let id = self.plain(x)?;
        let id = self.reshaped(id, shape)?;
        Ok(Logical::plain(id, shape))
    }

    /// The same by splitting alone; `None` if extents do not divide each other.
    fn regroup(&mut self, x: &Logical, shape: &[usize]) -> Made<Option<Logical>> {
        let mut left: Vec<Atom> = x.dims.iter().flatten().copied().rev().collect();
        let mut dims: Vec<Vec<Atom>> = Vec::new();
        // For each dimension of the value that is split: into which extents.
        let mut parts: Vec<Vec<usize>> =
            self.builder.shape(x.id).dims().iter().map(|&extent| vec![extent]).collect();
        // Atoms with the part of their dimension that they are.
        let mut places: Vec<Vec<(Atom, usize)>> = Vec::new();
        for &extent in shape {
            let (mut needed, mut own) = (extent, Vec::new());
            while needed > 1 {
                let Some(atom) = left.pop() else { return Ok(None) };
                let part = atom.dim.map_or(0, |dim| parts[dim].len() - 1);
                if needed.is_multiple_of(atom.extent) {
                    own.push((atom, part));
                    needed /= atom.extent;
                } else if atom.extent.is_multiple_of(needed) {
                    let inner = atom.extent / needed;
                    if let Some(dim) = atom.dim {
                        parts[dim].pop();
                        parts[dim].extend([needed, inner]);
                    }
                    own.push((Atom { extent: needed, ..atom }, part));
                    left.push(Atom { extent: inner, ..atom });
                    needed = 1;
                } else {
                    return Ok(None);
                }
            }
            places.push(own);
        }
        if !left.is_empty() {
            return Ok(None);
        }
        // Dimensions of extent 1 vanish, so that few enough are left.
        let kept = |extents: &Vec<usize>| extents.len() > 1 || extents[0] > 1;
        let split = parts.iter().any(|extents| extents.len() > 1);
        if split && parts.iter().filter(|extents| kept(extents)).map(Vec::len).sum::<usize>() > MAX_RANK {
            return Ok(None);
        }
        let mut id = x.id;
        let mut first: Vec<usize> = (0..parts.len()).collect();
        if split {
            let mut at = 0;
            for (dim, extents) in parts.iter().enumerate() {
                first[dim] = at;
                at += if kept(extents) { extents.len() } else { 0 };
            }
            let flat: Vec<usize> = parts.iter().filter(|extents| kept(extents)).flatten().copied().collect();
            id = self.reshaped(id, &flat)?;
        }
        for own in places {
            let renumber =
                |(atom, part): (Atom, usize)| Atom { dim: atom.dim.map(|dim| first[dim] + part), ..atom };
            dims.push(own.into_iter().map(renumber).collect());
        }
        Ok(Some(Logical { id, dims }))
    }
}

/// Atoms after the groups have become dimensions; a group of several atoms of one dimension becomes one.
pub(crate) fn renumbered(atoms: &[Atom], groups: &[Vec<Atom>]) -> Vec<Atom> {
    let mut all: Vec<Atom> = Vec::new();
    let mut seen: Vec<usize> = Vec::new();
    for atom in atoms {
        let group = atom.dim.and_then(|_| groups.iter().position(|group| group.contains(atom)));
        match group {
            None => all.push(*atom),
            Some(group) if seen.contains(&group) => {}
            Some(group) => {
                seen.push(group);
                all.push(Atom { dim: Some(group), extent: product(&groups[group]) });
            }
        }
    }
    all
}

/// Joins two neighbouring groups that are neighbours in a dimension of `x`, too; whether there were such.
pub(crate) fn merge_neighbours(groups: &mut Vec<Vec<Atom>>, x: &Logical) -> bool {
    let follows = |first: &Atom, second: &Atom| {
        x.dims.iter().any(|atoms| atoms.windows(2).any(|pair| pair == [*first, *second]))
    };
    let at = (1..groups.len()).rev().find(|&at| match (groups[at - 1].last(), groups[at].first()) {
        (Some(first), Some(second)) => follows(first, second),
        _ => false,
    });
    let Some(at) = at else { return false };
    let second = groups.remove(at);
    groups[at - 1].extend(second);
    true
}
