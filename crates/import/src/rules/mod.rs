//! What each operator of PyTorch becomes: one row of [`RULES`] each.

mod attention;
mod elementwise;
mod images;
mod indexing;
mod losses;
mod norms;
mod products;
mod random;
mod recurrent;
mod reductions;
mod shapes;

use crate::call::Call;
use crate::emit::Made;
use crate::layout::Logical;

pub(crate) use shapes::slice_cuts;

/// The results of a node; those that no layer gives are left out.
pub(crate) type Results = Made<Vec<Option<Logical>>>;
pub(crate) type Rule = fn(&mut Call<'_>) -> Results;

fn one(made: Made<Logical>) -> Results {
    made.map(|logical| vec![Some(logical)])
}

/// An operator of PyTorch, whatever its overload, and what it becomes.
pub(crate) struct Row {
    pub(crate) operator: &'static str,
    pub(crate) becomes: &'static str,
    rule: Rule,
}

const fn row(operator: &'static str, becomes: &'static str, rule: Rule) -> Row {
    Row { operator, becomes, rule }
}

/// All operators that have a counterpart.
pub(crate) static RULES: &[Row] = &[
    row("aten._log_softmax", "reductions", reductions::log_softmax),
    row("aten._native_batch_norm_legit_functional", "batch norm", norms::batch_norm),
    row("aten._native_batch_norm_legit_no_training", "batch norm", norms::batch_norm),
    row("aten._softmax", "softmax", reductions::softmax),
    row("aten._to_copy", "cast", elementwise::cast),
    row("aten._unsafe_view", "no layer, or reshape", shapes::view),
    row("aten.abs", "unary", elementwise::unary),
    row("aten.adaptive_avg_pool1d", "pool", images::adaptive_pool),
    row("aten.adaptive_avg_pool2d", "pool", images::adaptive_pool),
    row("aten.adaptive_avg_pool3d", "pool", images::adaptive_pool),
    row("aten.add", "binary", elementwise::add),
    row("aten.addcmul", "binary", elementwise::addcmul),
    row("aten.addmm", "linear", products::addmm),
    row("aten.amax", "reduce", reductions::amax),
    row("aten.avg_pool1d", "pool", images::avg_pool),
    row("aten.avg_pool2d", "pool", images::avg_pool),
    row("aten.avg_pool3d", "pool", images::avg_pool),
    row("aten.baddbmm", "matmul", products::baddbmm),
    row("aten.batch_norm", "batch norm", norms::batch_norm),
    row("aten.bernoulli", "random", random::bernoulli),
    row("aten.binary_cross_entropy", "unary, binary, reduce", losses::bce),
    row("aten.binary_cross_entropy_with_logits", "unary, binary, reduce", losses::bce_with_logits),
    row("aten.bitwise_and", "compare", elementwise::compare),
    row("aten.bitwise_not", "compare", elementwise::not),
    row("aten.bitwise_or", "compare", elementwise::compare),
    row("aten.bmm", "matmul", products::matmul),
    row("aten.cat", "concat", shapes::cat),
    row("aten.chunk", "split", shapes::split),
    row("aten.clamp", "unary", elementwise::clamp),
    row("aten.clamp_max", "unary", elementwise::clamp),
    row("aten.clamp_min", "unary", elementwise::clamp),
    row("aten.constant_pad_nd", "concat", shapes::pad),
    row("aten.conv1d", "conv", images::conv),
    row("aten.conv2d", "conv, or linear", images::conv),
    row("aten.conv3d", "conv", images::conv),
    row("aten.conv_transpose1d", "conv", images::conv_transpose),
    row("aten.conv_transpose2d", "conv", images::conv_transpose),
    row("aten.conv_transpose3d", "conv", images::conv_transpose),
    row("aten.cos", "unary", elementwise::unary),
    row("aten.cross_entropy_loss", "cross_entropy", losses::cross_entropy),
    row("aten.cumsum", "linear with a table", products::cumsum),
    row("aten.div", "binary", elementwise::div),
    row("aten.dropout", "dropout", random::dropout),
    row("aten.einsum", "matmul", products::einsum),
    row("aten.elu", "unary", elementwise::elu),
    row("aten.embedding", "embedding", indexing::embedding),
    row("aten.embedding_bag", "embedding", indexing::embedding_bag),
    row("aten.eq", "compare", elementwise::compare),
    row("aten.erf", "unary", elementwise::unary),
    row("aten.exp", "unary", elementwise::unary),
    row("aten.expand", "no layer, or broadcast", shapes::expand),
    row("aten.flip", "reverse", shapes::flip),
    row("aten.full_like", "constant", random::full_like),
    row("aten.gather", "gather", indexing::gather),
    row("aten.ge", "compare", elementwise::compare),
    row("aten.gelu", "unary", elementwise::unary),
    row("aten.glu", "split, binary", elementwise::glu),
    row("aten.group_norm", "layer_norm", norms::group_norm),
    row("aten.gru", "unrolled", recurrent::gru),
    row("aten.gt", "compare", elementwise::compare),
    row("aten.hardsigmoid", "unary", elementwise::unary),
    row("aten.hardswish", "unary", elementwise::unary),
    row("aten.hardtanh", "unary", elementwise::clamp),
    row("aten.histc", "compare, reduce", indexing::histc),
    row("aten.huber_loss", "unary, binary, reduce", losses::huber),
    row("aten.index", "gather", indexing::index),
    row("aten.index_add", "scatter_add", indexing::index_put),
    row("aten.index_put", "scatter_add", indexing::index_put),
    row("aten.index_select", "gather", indexing::index),
    row("aten.instance_norm", "reduce, binary", norms::instance_norm),
    row("aten.kl_div", "unary, binary, reduce", losses::kl_div),
    row("aten.l1_loss", "unary, binary, reduce", losses::regression),
    row("aten.layer_norm", "layer_norm", norms::layer_norm),
    row("aten.le", "compare", elementwise::compare),
    row("aten.leaky_relu", "unary", elementwise::leaky_relu),
    row("aten.linear", "linear", products::linear),
    row("aten.log", "unary", elementwise::unary),
    row("aten.log1p", "unary", elementwise::log1p),
    row("aten.log_sigmoid_forward", "unary", elementwise::log_sigmoid),
    row("aten.log_softmax", "reductions", reductions::log_softmax),
    row("aten.logical_and", "compare", elementwise::compare),
    row("aten.logical_not", "compare", elementwise::not),
    row("aten.logical_or", "compare", elementwise::compare),
    row("aten.logsumexp", "reductions", reductions::logsumexp),
    row("aten.lstm", "unrolled", recurrent::lstm),
    row("aten.lt", "compare", elementwise::compare),
    row("aten.masked_fill", "where", elementwise::masked_fill),
    row("aten.matmul", "matmul, or linear", products::matmul),
    row("aten.max", "reduce", reductions::amax),
    row("aten.max_pool1d", "pool", images::max_pool),
    row("aten.max_pool2d", "pool", images::max_pool),
    row("aten.max_pool3d", "pool", images::max_pool),
    row("aten.maximum", "binary", elementwise::maximum),
    row("aten.mean", "reduce", reductions::mean),
    row("aten.minimum", "binary", elementwise::minimum),
    row("aten.mish", "unary, binary", elementwise::mish),
    row("aten.mm", "linear, or matmul", products::matmul),
    row("aten.mse_loss", "unary, binary, reduce", losses::regression),
    row("aten.mul", "binary", elementwise::mul),
    row("aten.native_dropout", "dropout", random::dropout),
    row("aten.ne", "compare", elementwise::compare),
    row("aten.neg", "unary", elementwise::unary),
    row("aten.nll_loss", "gather, reduce", losses::nll),
    row("aten.nll_loss2d", "gather, reduce", losses::nll),
    row("aten.nll_loss_nd", "gather, reduce", losses::nll),
    row("aten.permute", "no layer, or transpose", shapes::permute),
    row("aten.pixel_shuffle", "reshape, transpose", images::pixel_shuffle),
    row("aten.pow", "unary", elementwise::pow),
    row("aten.prelu", "unary, binary", elementwise::prelu),
    row("aten.rand_like", "random", random::rand_like),
    row("aten.randn_like", "random", random::randn_like),
    row("aten.reciprocal", "unary", elementwise::reciprocal),
    row("aten.relu", "unary", elementwise::unary),
    row("aten.relu6", "unary", elementwise::relu6),
    row("aten.repeat", "concat", shapes::repeat),
    row("aten.reshape", "no layer, or reshape", shapes::view),
    row("aten.rms_norm", "rms_norm", norms::rms_norm),
    row("aten.roll", "split, concat", shapes::roll),
    row("aten.rsqrt", "unary", elementwise::unary),
    row("aten.rsub", "binary", elementwise::rsub),
    row("aten.scalar_tensor", "constant", random::scalar),
    row("aten.scaled_dot_product_attention", "attention", attention::attention),
    row("aten.select", "split", shapes::select),
    row("aten.selu", "unary", elementwise::selu),
    row("aten.sigmoid", "unary", elementwise::unary),
    row("aten.silu", "unary", elementwise::unary),
    row("aten.sin", "unary", elementwise::unary),
    row("aten.slice", "split", shapes::slice),
    row("aten.smooth_l1_loss", "unary, binary, reduce", losses::huber),
    row("aten.soft_margin_loss", "unary, binary, reduce", losses::soft_margin),
    row("aten.softmax", "softmax", reductions::softmax),
    row("aten.softplus", "unary", elementwise::softplus),
    row("aten.split", "split", shapes::split),
    row("aten.split_with_sizes", "split", shapes::split),
    row("aten.sqrt", "unary", elementwise::unary),
    row("aten.squeeze", "no layer", shapes::view),
    row("aten.stack", "concat", shapes::stack),
    row("aten.std", "reduce, binary", reductions::variance),
    row("aten.sub", "binary", elementwise::sub),
    row("aten.sum", "reduce", reductions::sum),
    row("aten.t", "no layer, or transpose", shapes::transpose),
    row("aten.tanh", "unary", elementwise::unary),
    row("aten.topk", "topk", indexing::topk),
    row("aten.transpose", "no layer, or transpose", shapes::transpose),
    row("aten.unbind", "split", shapes::unbind),
    row("aten.unsqueeze", "no layer", shapes::view),
    row("aten.upsample_bilinear2d", "resize", images::upsample),
    row("aten.upsample_linear1d", "resize", images::upsample),
    row("aten.upsample_nearest1d", "resize", images::upsample),
    row("aten.upsample_nearest2d", "resize", images::upsample),
    row("aten.upsample_nearest3d", "resize", images::upsample),
    row("aten.var", "reduce, binary", reductions::variance),
    row("aten.var_mean", "reduce, binary", reductions::variance),
    row("aten.view", "no layer, or reshape", shapes::view),
    row("aten.where", "where", elementwise::select),
    row("phalanx.attention", "attention", attention::attention),
    row("phalanx.experts", "grouped_linear", products::experts),
];

/// Operators and what they become, for documents.
pub fn supported_operators() -> impl Iterator<Item = (&'static str, &'static str)> {
    RULES.iter().map(|row| (row.operator, row.becomes))
}

/// An operator without its overload: `aten.add` of `aten.add.Tensor`.
pub(crate) fn base(op: &str) -> &str {
    let ends = op.match_indices('.').nth(1);
    ends.map_or(op, |(at, _)| &op[..at])
}

/// The rule of an operator.
pub(crate) fn rule(op: &str) -> Option<Rule> {
    let base = base(op);
    RULES.binary_search_by(|row| row.operator.cmp(base)).ok().map(|at| RULES[at].rule)
}

/// Ways around operators without counterpart, by what their names contain.
const WAYS: &[(&str, &str)] = &[
    ("fft", "write it as a product with a constant matrix"),
    ("complex", "keep real and imaginary parts as two tensors"),
    ("view_as_real", "keep real and imaginary parts as two tensors"),
    ("polar", "keep real and imaginary parts as two tensors"),
    ("sparse", "use dense tensors, or gather and index_add"),
    ("quantize", "train with float32 weights; quantize after training"),
    ("nonzero", "its shape depends on data: use a mask of fixed shape and torch.where"),
    ("unique", "its shape depends on data: compute it in the data loader"),
    ("masked_select", "its shape depends on data: use a mask of fixed shape and torch.where"),
    (
        "_local_scalar_dense",
        "a number read from a tensor, `x.item()`, cannot be part of a graph: keep it a tensor",
    ),
    ("item", "a number read from a tensor cannot steer a graph: keep it a tensor"),
    ("linalg", "compute it in the data loader, or write it with products"),
    ("cholesky", "compute it in the data loader, or write it with products"),
    ("svd", "compute it in the data loader, or write it with products"),
    ("multinomial", "draw samples in the data loader and pass them as an input"),
    ("randint", "draw it in the data loader and pass it as an input"),
    ("randperm", "draw it in the data loader and pass it as an input"),
    ("sort", "compute the order in the data loader, or use topk"),
    ("grid_sampler", "compute the grid in the data loader, or use F.interpolate"),
    ("ctc_loss", "compute this loss in PyTorch"),
    ("grouped_mm", "pass `transformers` models as they are: their experts are recognized"),
];

/// A way around an operator that has no counterpart.
pub(crate) fn way_out(op: &str) -> String {
    let known = WAYS.iter().find(|(part, _)| op.contains(part));
    let general = "write it with operators of the table in the chapter \"From PyTorch\"";
    known.map_or(general, |(_, way)| way).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chapter_lists_all_operators() {
        let mut rows: std::collections::BTreeMap<&str, Vec<String>> = std::collections::BTreeMap::new();
        for (operator, becomes) in supported_operators() {
            let name = operator.strip_prefix("aten.").unwrap_or(operator);
            rows.entry(becomes).or_default().push(format!("`{name}`"));
        }
        rows.values_mut().for_each(|names| names.sort());
        let rows = rows.iter().map(|(becomes, names)| format!("| {becomes} | {} |\n", names.join(", ")));
        let table: String = rows.collect();
        let chapter = include_str!("../../../../docs/src/from-pytorch.md");
        assert!(chapter.ends_with(&table), "the table of the chapter should be\n{table}");
    }

    #[test]
    fn rules_are_sorted_and_found_without_their_overload() {
        assert!(RULES.is_sorted_by(|a, b| a.operator < b.operator));
        assert!(rule("aten.add.Tensor").is_some() && rule("aten.fft_rfft").is_none());
        assert_eq!(base("transformers.x.y"), "transformers.x");
    }
}
