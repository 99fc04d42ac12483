//! Matrix products.

use phalanx_ir::{Activation, Binary, DType, Table, Unary};
use phalanx_ops::{Layers, Linear, Matmul, MoeLayer};

use super::elementwise::floats;
use super::{Results, one};
use crate::call::Call;
use crate::emit::{Made, Problem};
use crate::layout::{Atom, Logical, is_stored};

pub(super) fn linear(call: &mut Call<'_>) -> Results {
    let (x, weight) = (floats(call, "input")?, floats(call, "weight")?);
    let bias = call.optional("bias")?;
    one(rows_times(call, &x, &weight, bias.as_ref()))
}

/// x · weightᵀ + bias, for a weight that PyTorch sees as `[out, in]`.
pub(super) fn rows_times(
    call: &mut Call<'_>,
    x: &Logical,
    weight: &Logical,
    bias: Option<&Logical>,
) -> Made<Logical> {
    let Some(last) = x.rank().checked_sub(1) else { return Err(Problem::Broken("it has no rows".into())) };
    if weight.rank() != 2 {
        return Err(Problem::Broken(format!("the weight has {} dimensions, not 2", weight.rank())));
    }
    let out = weight.shape()[0];
    let x = call.emit.innermost(x, &[last])?;
    // Stored `[in, out]`, a weight is taken as it is.
    let transposed =
        matches!((&weight.dims[0][..], &weight.dims[1][..]), ([a], [b]) if a.dim > b.dim && b.dim.is_some());
    let order = if transposed { [1, 0] } else { [0, 1] };
    let mut operands = vec![x.id, call.emit.ordered(weight, &order)?];
    if let Some(bias) = bias {
        operands.push(call.emit.plain(bias)?);
    }
    let id = call.emit.add("", Linear { transposed, activation: Activation::None }, &operands)?;
    let axis = call.emit.builder.shape(id).rank() - 1;
    let mut y = x.with_id(id);
    y.dims[last] = if out == 1 { Vec::new() } else { vec![Atom { dim: Some(axis), extent: out }] };
    Ok(y)
}

/// β·bias + α·(a · b), for a bias that is a row.
pub(super) fn addmm(call: &mut Call<'_>) -> Results {
    if call.float_or("beta", 1.0)? != 1.0 || call.float_or("alpha", 1.0)? != 1.0 {
        return call.unsupported("alpha or beta is not 1: write the sum out");
    }
    let (bias, a, b) = (floats(call, "self")?, floats(call, "mat1")?, floats(call, "mat2")?);
    if b.rank() != 2 {
        return Err(Problem::Broken("it multiplies by no matrix".into()));
    }
    let b = b.permuted(&[1, 0]);
    if bias.rank() == 1 {
        return one(rows_times(call, &a, &b, Some(&bias)));
    }
    let product = rows_times(call, &a, &b, None)?;
    one(call.emit.binary("sum", Binary::Add, &product, &bias))
}

pub(super) fn baddbmm(call: &mut Call<'_>) -> Results {
    let (bias, a, b) = (floats(call, "self")?, floats(call, "batch1")?, floats(call, "batch2")?);
    let (beta, alpha) = (call.float_or("beta", 1.0)?, call.float_or("alpha", 1.0)?);
    let mut product = multiplied(call, &a, &b)?;
    if alpha != 1.0 {
        product = call.emit.unary("scaled", Unary::MulScalar(alpha as f32), &product)?;
    }
    if beta == 0.0 {
        return Ok(vec![Some(product)]);
    }
    let bias =
        if beta == 1.0 { bias } else { call.emit.unary("bias", Unary::MulScalar(beta as f32), &bias)? };
    one(call.emit.binary("sum", Binary::Add, &product, &bias))
}

pub(super) fn matmul(call: &mut Call<'_>) -> Results {
    let other = ["other", "mat2"].into_iter().find(|name| call.has(name)).unwrap_or("other");
    let (a, b) = (floats(call, "self")?, floats(call, other)?);
    if a.rank() == 0 || b.rank() == 0 {
        return Err(Problem::Broken("it multiplies by a scalar".into()));
    }
    // Vectors are matrices with one row or one column.
    let wide_a = if a.rank() == 1 { a.unsqueezed(0) } else { a.clone() };
    let wide_b = if b.rank() == 1 { b.unsqueezed(1) } else { b.clone() };
    let mut y = multiplied(call, &wide_a, &wide_b)?;
    if b.rank() == 1 {
        y = y.squeezed(y.rank() - 1);
    }
    if a.rank() == 1 {
        y = y.squeezed(y.rank() - usize::from(b.rank() > 1) - 1);
    }
    Ok(vec![Some(y)])
}

/// The product of the two innermost dimensions.
pub(super) fn multiplied(call: &mut Call<'_>, a: &Logical, b: &Logical) -> Made<Logical> {
    if b.rank() == 2 {
        return rows_times(call, a, &b.permuted(&[1, 0]), None);
    }
    let rank = a.rank().max(b.rank());
    let lead = rank - 2;
    // A product stretches neither operand by itself.
    let (a, b) = (a.padded(rank), b.padded(rank));
    let (of_a, of_b) = (a.shape(), b.shape());
    let common: Vec<usize> = (0..lead).map(|dim| of_a[dim].max(of_b[dim])).collect();
    let (a, b) = (
        a.expanded(&[&common[..], &of_a[lead..]].concat()),
        b.expanded(&[&common[..], &of_b[lead..]].concat()),
    );
    let (m, n) = (a.shape()[lead], b.shape()[lead + 1]);
    // Batch dimensions in common order; the four others stay apart: m, k of a, k, n of b.
    let spread = |x: &Logical, own: [usize; 2]| {
        let mut dims = x.dims[..lead].to_vec();
        dims.extend((0..4).map(|place| match own.iter().position(|&own| own == place) {
            Some(at) => x.dims[lead + at].clone(),
            None => Vec::new(),
        }));
        Logical { id: x.id, dims }
    };
    let mut both = [spread(&a, [0, 1]), spread(&b, [2, 3])];
    for x in &mut both {
        for dim in lead..lead + 4 {
            if x.dims[dim].len() > 1 {
                *x = call.emit.single(x, dim)?.0;
            }
        }
    }
    let mut groups = call.emit.common_groups(&mut both, usize::MAX)?;
    groups.retain(|group| group.0[0].0 < lead);
    while groups.len() > 4 {
        let at = (1..groups.len()).rev().find(|&at| {
            let (a, b) = (groups[at - 1].0.last(), groups[at].0.first());
            matches!((a, b), (Some(a), Some(b)) if a.0 == b.0 && a.1 + 1 == b.1)
        });
        let Some(at) = at else { return call.unsupported("a product with more than 4 batch dimensions") };
        let second = groups.remove(at);
        groups[at - 1].0.extend(second.0);
    }
    let matrix = |x: &Logical, [row, column]: [usize; 2]| {
        let place = |dim: usize| x.dims[lead + dim].first().and_then(|atom| atom.dim);
        let swapped = matches!((place(row), place(column)), (Some(row), Some(column)) if row > column);
        let inner = if swapped { [column, row] } else { [row, column] };
        let atoms = groups.iter().map(|group| group.of(x)).chain(inner.map(|dim| x.dims[lead + dim].clone()));
        (swapped, atoms.collect::<Vec<_>>())
    };
    let (transpose_a, of_a) = matrix(&both[0], [0, 1]);
    let (transpose_b, of_b) = matrix(&both[1], [2, 3]);
    let ids = [call.emit.arrange(&both[0], &of_a, true)?, call.emit.arrange(&both[1], &of_b, true)?];
    let id = call.emit.add("matmul", Matmul { transpose_a, transpose_b }, &ids)?;
    let mut dims = crate::emit::result_dims(&both, &groups);
    dims.truncate(lead);
    for (place, extent) in [m, n].into_iter().enumerate() {
        let atom = Atom { dim: Some(groups.len() + place), extent };
        dims.push(if extent == 1 { Vec::new() } else { vec![atom] });
    }
    Ok(Logical { id, dims })
}

/// A product written with letters, of one or two tensors.
pub(super) fn einsum(call: &mut Call<'_>) -> Results {
    let equation: String = call.text("equation")?.chars().filter(|c| !c.is_whitespace()).collect();
    let operands = call.tensors("tensors")?;
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, right.to_string()),
        None => (&equation[..], implied(&equation)),
    };
    let words: Vec<Vec<char>> = left.split(',').map(|word| word.chars().collect()).collect();
    let out: Vec<char> = right.chars().collect();
    let fits = words.len() == operands.len()
        && words.iter().zip(&operands).all(|(word, x)| word.len() == x.rank())
        && words.iter().all(|word| word.iter().enumerate().all(|(at, c)| !word[..at].contains(c)));
    if !fits || equation.contains('.') {
        return call.unsupported("an einsum with `...` or a repeated letter: write its letters out");
    }
    let mut terms: Vec<(Logical, Vec<char>)> = operands.into_iter().zip(words).collect();
    let (mut x, mut word) = terms.remove(0);
    for (index, (y, other)) in terms.iter().enumerate() {
        let later: Vec<char> =
            terms[index + 1..].iter().flat_map(|(_, word)| word.clone()).chain(out.iter().copied()).collect();
        (x, word) = contracted(call, (&x, &word), (y, other), &later)?;
    }
    let gone: Vec<usize> = (0..word.len()).filter(|&at| !out.contains(&word[at])).collect();
    if !gone.is_empty() {
        x = super::reductions::reduced(call, "einsum", phalanx_ir::Reduce::Sum, &x, &gone, false)?;
        word.retain(|c| out.contains(c));
    }
    let order: Option<Vec<usize>> = out.iter().map(|c| word.iter().position(|other| other == c)).collect();
    let Some(order) = order.filter(|order| order.len() == word.len()) else {
        return Err(Problem::Broken(format!("`{equation}` gives a letter that no operand has")));
    };
    Ok(vec![Some(x.permuted(&order))])
}

/// The letters that appear once, in order.
fn implied(left: &str) -> String {
    let mut letters: Vec<char> = left.chars().filter(|c| c.is_alphabetic()).collect();
    letters.sort_unstable();
    let once = letters.iter().filter(|c| letters.iter().filter(|other| other == c).count() == 1);
    once.collect()
}

/// The product of two tensors over the letters that nothing later needs.
fn contracted(
    call: &mut Call<'_>,
    (a, of_a): (&Logical, &[char]),
    (b, of_b): (&Logical, &[char]),
    later: &[char],
) -> Made<(Logical, Vec<char>)> {
    let batch: Vec<char> = of_a.iter().copied().filter(|c| of_b.contains(c) && later.contains(c)).collect();
    let summed: Vec<char> = of_a.iter().copied().filter(|c| of_b.contains(c) && !later.contains(c)).collect();
    let own = |word: &[char], other: &[char]| -> Vec<char> {
        word.iter().copied().filter(|c| !other.contains(c)).collect()
    };
    let (rows, columns) = (own(of_a, of_b), own(of_b, of_a));
    if summed.is_empty() {
        // Nothing is summed: an element-wise product.
        let word: Vec<char> = [&batch[..], &rows, &columns].concat();
        let [a, b] = [(a, of_a), (b, of_b)].map(|(x, of_x)| {
            let dims = word.iter().map(|c| match of_x.iter().position(|other| other == c) {
                Some(at) => x.dims[at].clone(),
                None => Vec::new(),
            });
            Logical { id: x.id, dims: dims.collect() }
        });
        return Ok((call.emit.binary("product", Binary::Mul, &a, &b)?, word));
    }
    let merged = |x: &Logical, word: &[char], groups: [&[char]; 2]| {
        let atoms = |c: &char| {
            word.iter().position(|other| other == c).map(|at| x.dims[at].clone()).unwrap_or_default()
        };
        let mut dims: Vec<Vec<Atom>> = batch.iter().map(atoms).collect();
        dims.extend(groups.map(|group| group.iter().flat_map(atoms).collect::<Vec<_>>()));
        Logical { id: x.id, dims }
    };
    let extents = |x: &Logical, word: &[char], letters: &[char]| -> Vec<usize> {
        letters
            .iter()
            .filter_map(|c| word.iter().position(|other| other == c))
            .map(|at| x.shape()[at])
            .collect()
    };
    let product =
        multiplied(call, &merged(a, of_a, [&rows, &summed]), &merged(b, of_b, [&summed, &columns]))?;
    let shape = [extents(a, of_a, &batch), extents(a, of_a, &rows), extents(b, of_b, &columns)].concat();
    let product = call.emit.reshape(&product, &shape)?;
    Ok((product, [&batch[..], &rows, &columns].concat()))
}

/// Sums of all elements so far: a product with a triangle of ones.
pub(super) fn cumsum(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let dim = call.dim("dim", x.rank())?;
    let extent = x.shape()[dim];
    if extent > LONGEST_SUM {
        return call.unsupported(format!(
            "sums along {extent} elements, more than {LONGEST_SUM}: cut them into parts"
        ));
    }
    let ones: Vec<f32> =
        (0..extent * extent).map(|at| f32::from(u8::from(at % extent <= at / extent))).collect();
    let name = call.emit.named("triangle");
    let weight = call.emit.builder.table(&name, [extent, extent], Table::f32s(&ones))?;
    let weight = Logical::plain(weight, &[extent, extent]);
    let mut order: Vec<usize> = (0..x.rank()).collect();
    order.retain(|&other| other != dim);
    order.push(dim);
    let y = rows_times(call, &x.permuted(&order), &weight, None)?;
    let mut back: Vec<usize> = (0..x.rank() - 1).collect();
    back.insert(dim, x.rank() - 1);
    Ok(vec![Some(y.permuted(&back))])
}

/// The most elements that are summed up by a product.
const LONGEST_SUM: usize = 4096;

/// Experts of transformers' models: `x [rows, width]`, ids and weights `[rows, k]`, `gate_up [experts, 2 hidden, width]` and
/// `down [experts, width, hidden]`.
pub(super) fn experts(call: &mut Call<'_>) -> Results {
    let [x, ids, weights] = [floats(call, "x")?, call.tensor("ids")?, floats(call, "weights")?];
    let [gate_up, down] = [floats(call, "gate_up")?, floats(call, "down")?];
    if [x.rank(), gate_up.rank(), down.rank()] != [2, 3, 3] || ids.rank() != 2 || weights.rank() != 2 {
        return Err(Problem::Broken("experts take rows, and three dimensions of weights".into()));
    }
    let activation = match call.text("activation")? {
        "silu" => Activation::Silu,
        "gelu" => Activation::GeluErf,
        "gelu_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        other => {
            return call.unsupported(format!("experts with the activation {other}: use silu, gelu or relu"));
        }
    };
    if call.emit.builder.ty(ids.id).dtype == DType::F32 || !is_stored(&x.dims[0]) {
        return Err(Problem::Broken("experts are chosen by integers".into()));
    }
    let hidden = gate_up.shape()[1] / 2;
    let parts = super::shapes::pieces(call, &gate_up, 1, &[hidden, hidden])?;
    let [gate, up, down] =
        [call.emit.plain(&parts[0])?, call.emit.plain(&parts[1])?, call.emit.plain(&down)?];
    // Rows keep their dimensions: those of the batch and of time.
    let mut routed = [x, ids, weights].map(|x| x.clone());
    let last = routed.clone().map(|x| x.rank() - 1);
    for (x, last) in routed.iter_mut().zip(last) {
        *x = call.emit.innermost(x, &[last])?;
    }
    let [x, ids, weights] = routed;
    let same = [&ids, &weights].iter().all(|other| other.dims[..last[0]] == x.dims[..last[0]]);
    let [x_id, ids_id, weights_id] = if same {
        [x.id, ids.id, weights.id]
    } else {
        [call.emit.plain(&x)?, call.emit.plain(&ids)?, call.emit.plain(&weights)?]
    };
    let layer = MoeLayer { activation, up, gate: Some(gate), down, capacity: None };
    let name = call.emit.named("");
    let id = call.emit.builder.experts(&name, x_id, [ids_id, weights_id], layer)?;
    let y = if same { x.with_id(id) } else { Logical::plain(id, &x.shape()) };
    Ok(vec![Some(y)])
}
