//! Attention.

use phalanx_ir::DType;
use phalanx_ops::Attention;

use super::elementwise::floats;
use super::{Results, one};
use crate::RandomLayer;
use crate::call::Call;
use crate::emit::{Made, Problem};
use crate::layout::{Atom, Logical};
use crate::tensors::Constant;

/// Where queries see keys, as a constant mask says it.
#[derive(Debug, PartialEq)]
enum Seen {
    /// Everywhere.
    All,
    /// No later key, and none `window` or more places earlier; 0 if there is no window.
    Causal { window: usize },
    /// Something else.
    Other,
}

pub(super) fn attention(call: &mut Call<'_>) -> Results {
    let [query, key, value] = [floats(call, "query")?, floats(call, "key")?, floats(call, "value")?];
    let rank = query.rank();
    if rank < 2 || key.rank() != rank || value.rank() != rank {
        return Err(Problem::Broken("queries, keys and values have different ranks".into()));
    }
    // `[batch, heads, time, dim]`; what is missing in front is 1, what is more is batch.
    let four = |x: &Logical| {
        let mut x = x.padded(4);
        while x.rank() > 4 {
            let second = x.dims.remove(1);
            x.dims[0].extend(second);
        }
        x
    };
    let [query, key, value] = [four(&query), four(&key), four(&value)];
    let rate = call.float_or("dropout_p", 0.0)? as f32;
    let scale = call.float_or("scale", 1.0 / (query.shape()[3] as f64).sqrt())? as f32;
    let mut op = Attention { rate, ..Attention::new(call.flag("is_causal")?, scale) };
    op.window = call.extents("window", 1)?.first().copied().unwrap_or(0);
    op.softcap = call.float_or("softcap", 0.0)? as f32;
    let bias = bias(call, &mut op, [query.shape()[2], key.shape()[2]])?;
    let heads = query.shape()[1];
    let (key, value) = (shared_heads(key, heads), shared_heads(value, heads));
    let order = [0, 2, 1, 3];
    let mut operands = Vec::new();
    for x in [&query, &key, &value] {
        operands.push(call.emit.ordered(x, &order)?);
    }
    if let Some(bias) = bias {
        operands.push(with_ones(call, &bias)?);
    }
    let name = call.emit.named("heads");
    let shape = [query.shape()[0], heads, query.shape()[2], key.shape()[2]];
    let id = call.emit.builder.add_one(&name, op, &operands)?;
    if rate > 0.0 {
        let name = call.emit.builder_name(id);
        let (node, shape, order) = (call.emit.node.clone(), shape.to_vec(), (0..4).collect());
        call.emit.random.push(RandomLayer { name, node, rate: Some(rate), shape, order });
    }
    let dims = call.emit.builder.shape(id).dims().to_vec();
    let y = Logical::plain(id, &dims).permuted(&order);
    let wanted = call.shape(0)?.to_vec();
    one(call.emit.reshape(&y, &wanted))
}

/// Keys or values without the copies of each head that queries share.
fn shared_heads(mut x: Logical, heads: usize) -> Logical {
    let stored: usize = x.dims[1].iter().filter(|atom| atom.dim.is_some()).map(|atom| atom.extent).product();
    // Copies are neighbours: the stretched atom is innermost.
    let is_repeated = matches!(
        x.dims[1][..],
        [Atom { dim: Some(_), .. }, Atom { dim: None, .. }] | [Atom { dim: None, .. }]
    );
    if is_repeated && heads.is_multiple_of(stored) {
        x.dims[1].pop();
    }
    x
}

/// What is added to scores, unless the attributes say it.
fn bias(call: &mut Call<'_>, op: &mut Attention, times: [usize; 2]) -> Made<Option<Logical>> {
    if let Some(constant) = call.constant("attn_mask")? {
        match seen(&constant) {
            Seen::All => return Ok(None),
            Seen::Causal { window } if !op.causal && op.window == 0 => {
                (op.causal, op.window) = (true, window);
                return Ok(None);
            }
            _ => {}
        }
    }
    let Some(mask) = call.optional("attn_mask")? else { return Ok(None) };
    op.mask = call.emit.builder.ty(mask.id).dtype == DType::Bool;
    let shape = mask.shape();
    let fits = shape.len() >= 2
        && shape.len() <= 4
        && [shape[shape.len() - 2], shape[shape.len() - 1]].iter().zip(times).all(|(&a, b)| a == b || a == 1);
    if !fits {
        return Err(Problem::Broken(format!("a mask {shape:?} for {times:?} queries and keys")));
    }
    let wide = mask.padded(4);
    // Keys are never stretched.
    Ok(Some(if wide.shape()[3] == times[1] { wide } else { wide.expanded(&[1, 1, 1, times[1]]) }))
}

/// A bias with 1 where it is stretched.
fn with_ones(call: &mut Call<'_>, bias: &Logical) -> Made<phalanx_ir::graph::ValueId> {
    let mut groups = bias.dims.clone();
    for group in &mut groups[..3] {
        if group.iter().all(|atom| atom.dim.is_none()) {
            group.clear();
        }
    }
    if groups[3].iter().any(|atom| atom.dim.is_none()) && call.emit.builder.ty(bias.id).dtype == DType::Bool {
        return call.unsupported("a mask that is the same for all keys: leave it out");
    }
    call.emit.arrange(bias, &groups, true)
}

/// What a constant mask says.
fn seen(mask: &Constant) -> Seen {
    let Some([rows, columns]) = mask.shape.last_chunk::<2>().copied() else { return Seen::Other };
    let Some(numbers) = mask.numbers().filter(|numbers| !numbers.is_empty()) else { return Seen::Other };
    let hides = |number: f64| match mask.dtype {
        crate::StoredDtype::BOOL => Some(number == 0.0),
        _ if number == 0.0 => Some(false),
        _ if number <= f64::from(f32::MIN) => Some(true),
        _ => None,
    };
    let Some(hidden) = numbers.into_iter().map(hides).collect::<Option<Vec<bool>>>() else {
        return Seen::Other;
    };
    if !hidden.contains(&true) {
        return Seen::All;
    }
    let fits = |window: usize| {
        hidden.iter().enumerate().all(|(at, &hidden)| {
            let (i, j) = (at / columns % rows, at % columns);
            hidden == (j > i || (window > 0 && i.abs_diff(j) >= window))
        })
    };
    // The last row sees as many keys as the window is long.
    let last = &hidden[(rows - 1) * columns..rows * columns];
    let window = last.iter().filter(|hidden| !**hidden).count();
    match rows == columns {
        true if fits(0) => Seen::Causal { window: 0 },
        true if window > 0 && fits(window) => Seen::Causal { window },
        _ => Seen::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(rows: usize, columns: usize, sees: impl Fn(usize, usize) -> bool) -> Constant {
        let bytes = (0..rows * columns).map(|at| u8::from(sees(at / columns, at % columns))).collect();
        Constant { dtype: crate::StoredDtype::BOOL, shape: vec![1, 1, rows, columns], bytes }
    }

    #[test]
    fn masks_are_recognized_by_all_their_elements() {
        assert_eq!(seen(&mask(5, 5, |_, _| true)), Seen::All);
        assert_eq!(seen(&mask(5, 5, |i, j| j <= i)), Seen::Causal { window: 0 });
        assert_eq!(seen(&mask(5, 5, |i, j| j <= i && i - j < 3)), Seen::Causal { window: 3 });
        assert_eq!(seen(&mask(5, 5, |i, j| j <= i && (i, j) != (3, 0))), Seen::Other, "one element differs");
        assert_eq!(seen(&mask(5, 5, |i, j| j >= i)), Seen::Other);
        assert_eq!(seen(&mask(3, 5, |i, j| j <= i + 2)), Seen::Other, "aligned at the last key");
    }
}
