//! Recurrent layers, step by step.

use phalanx_ir::{Activation, Binary, Unary};

use super::Results;
use super::elementwise::floats;
use super::products::rows_times;
use super::shapes::{joined, pieces};
use crate::call::Call;
use crate::emit::{Made, Problem};
use crate::layout::Logical;

/// The most steps that are unrolled.
const MOST_STEPS: usize = 256;

/// What a layer is made of in one direction.
struct Direction<'a> {
    weights: &'a [Logical],
    hidden: Logical,
    /// Of an LSTM.
    cell: Option<Logical>,
}

/// The weights and sizes of a stack.
struct Stack {
    input: Logical,
    weights: Vec<Logical>,
    states: Vec<Logical>,
    layers: usize,
    directions: usize,
    has_biases: bool,
    batch_first: bool,
}

fn stack(call: &mut Call<'_>, states: Vec<Logical>) -> Made<Stack> {
    let (input, weights) = (floats(call, "input")?, call.tensors("params")?);
    let layers = call.extents("num_layers", 1)?.first().copied().unwrap_or(1);
    let directions = 1 + usize::from(call.flag("bidirectional")?);
    let (has_biases, batch_first) = (call.flag("has_biases")?, call.flag("batch_first")?);
    if input.rank() != 3 {
        return call.unsupported("a sequence without a batch: add a dimension");
    }
    let input = if batch_first { input } else { input.permuted(&[1, 0, 2]) };
    let steps = input.shape()[1];
    if steps > MOST_STEPS {
        return call.unsupported(format!("{steps} steps, more than {MOST_STEPS}: use shorter sequences"));
    }
    if layers == 0 || states.iter().any(|state| state.rank() != 3 || state.shape()[0] != layers * directions)
    {
        return Err(Problem::Broken("its states do not fit its layers".into()));
    }
    if weights.len() != layers * directions * if has_biases { 4 } else { 2 } {
        return call.unsupported("a recurrent layer with projections: use proj_size=0");
    }
    Ok(Stack { input, weights, states, layers, directions, has_biases, batch_first })
}

/// One step of one direction: the new hidden state.
type Step = fn(&mut Call<'_>, &mut Direction<'_>, &Logical) -> Made<()>;

/// Runs a stack: the outputs, and the last states of every layer and direction.
fn unrolled(call: &mut Call<'_>, stack: &Stack, step: Step) -> Made<(Logical, Vec<[Option<Logical>; 2]>)> {
    let mut x = stack.input.clone();
    let rate = call.float_or("dropout", 0.0)? as f32;
    let drops = rate > 0.0 && call.flag("train")?;
    let each = stack.weights.len() / stack.layers / stack.directions;
    let mut ends = Vec::new();
    let path = call.emit.path.clone();
    for layer in 0..stack.layers {
        let mut outputs = Vec::new();
        for direction in 0..stack.directions {
            let at = layer * stack.directions + direction;
            call.emit.path = format!("{path}.l{layer}{}", if direction == 0 { "" } else { "_reverse" });
            let state = |index: usize, call: &mut Call<'_>| -> Made<Option<Logical>> {
                let Some(all) = stack.states.get(index) else { return Ok(None) };
                let count = all.shape()[0];
                Ok(Some(pieces(call, all, 0, &vec![1; count])?[at].squeezed(0)))
            };
            let hidden = state(0, call)?.ok_or(Problem::Missing)?;
            let cell = state(1, call)?;
            let weights = &stack.weights[at * each..(at + 1) * each];
            let mut own = Direction { weights, hidden, cell };
            // The input's part of all steps is one product.
            let bias = stack.has_biases.then(|| &weights[2]);
            let gates = rows_times(call, &x, &weights[0], bias)?;
            let steps = gates.shape()[1];
            let mut gates = pieces(call, &gates, 1, &vec![1; steps])?;
            if direction == 1 {
                gates.reverse();
            }
            let mut made = Vec::new();
            for gate in &gates {
                step(call, &mut own, &gate.squeezed(1))?;
                made.push(own.hidden.unsqueezed(1));
            }
            if direction == 1 {
                made.reverse();
            }
            outputs.push(joined(call, made, 1)?);
            ends.push([Some(own.hidden), own.cell]);
        }
        x = joined(call, outputs, 2)?;
        if drops && layer + 1 < stack.layers {
            call.emit.path = format!("{path}.l{layer}");
            x = super::random::dropped(call, &x, rate)?;
        }
    }
    call.emit.path = path;
    Ok((if stack.batch_first { x } else { x.permuted(&[1, 0, 2]) }, ends))
}

/// The recurrent part of the gates.
fn recurrent(call: &mut Call<'_>, own: &Direction<'_>) -> Made<Logical> {
    let bias = (own.weights.len() == 4).then(|| &own.weights[3]);
    rows_times(call, &own.hidden, &own.weights[1], bias)
}

fn act(call: &mut Call<'_>, word: &str, activation: Activation, x: &Logical) -> Made<Logical> {
    call.emit.unary(word, Unary::Act(activation), x)
}

fn lstm_step(call: &mut Call<'_>, own: &mut Direction<'_>, gates: &Logical) -> Made<()> {
    let inner = recurrent(call, own)?;
    let sum = call.emit.binary("gates", Binary::Add, gates, &inner)?;
    let width = sum.shape()[1] / 4;
    let parts = pieces(call, &sum, 1, &[width; 4])?;
    let input = act(call, "input", Activation::Sigmoid, &parts[0])?;
    let forget = act(call, "forget", Activation::Sigmoid, &parts[1])?;
    let new = act(call, "new", Activation::Tanh, &parts[2])?;
    let output = act(call, "output", Activation::Sigmoid, &parts[3])?;
    let cell = own.cell.clone().ok_or(Problem::Missing)?;
    let kept = call.emit.binary("kept", Binary::Mul, &forget, &cell)?;
    let added = call.emit.binary("added", Binary::Mul, &input, &new)?;
    let cell = call.emit.binary("cell", Binary::Add, &kept, &added)?;
    let shown = act(call, "shown", Activation::Tanh, &cell)?;
    own.hidden = call.emit.binary("hidden", Binary::Mul, &output, &shown)?;
    own.cell = Some(cell);
    Ok(())
}

fn gru_step(call: &mut Call<'_>, own: &mut Direction<'_>, gates: &Logical) -> Made<()> {
    let inner = recurrent(call, own)?;
    let width = inner.shape()[1] / 3;
    let (outer, inner) = (pieces(call, gates, 1, &[width; 3])?, pieces(call, &inner, 1, &[width; 3])?);
    let mut shares = Vec::new();
    for (at, word) in ["reset", "update"].into_iter().enumerate() {
        let sum = call.emit.binary("gate", Binary::Add, &outer[at], &inner[at])?;
        shares.push(act(call, word, Activation::Sigmoid, &sum)?);
    }
    let kept = call.emit.binary("kept", Binary::Mul, &shares[0], &inner[2])?;
    let sum = call.emit.binary("sum", Binary::Add, &outer[2], &kept)?;
    let new = act(call, "new", Activation::Tanh, &sum)?;
    // new + update (hidden - new).
    let gap = call.emit.binary("gap", Binary::Sub, &own.hidden, &new)?;
    let moved = call.emit.binary("moved", Binary::Mul, &shares[1], &gap)?;
    own.hidden = call.emit.binary("hidden", Binary::Add, &new, &moved)?;
    Ok(())
}

/// The last states of one kind, `[layers · directions, batch, width]`.
fn last(call: &mut Call<'_>, ends: &[[Option<Logical>; 2]], index: usize) -> Made<Option<Logical>> {
    let all: Option<Vec<Logical>> =
        ends.iter().map(|end| end[index].as_ref().map(|state| state.unsqueezed(0))).collect();
    match all {
        Some(all) => joined(call, all, 0).map(Some),
        None => Ok(None),
    }
}

pub(super) fn lstm(call: &mut Call<'_>) -> Results {
    let states = call.tensors("hx")?;
    let stack = stack(call, states)?;
    let (x, ends) = unrolled(call, &stack, lstm_step)?;
    Ok(vec![Some(x), last(call, &ends, 0)?, last(call, &ends, 1)?])
}

pub(super) fn gru(call: &mut Call<'_>) -> Results {
    let states = vec![call.tensor("hx")?];
    let stack = stack(call, states)?;
    let (x, ends) = unrolled(call, &stack, gru_step)?;
    Ok(vec![Some(x), last(call, &ends, 0)?])
}
