//! The first error is kept, with the line of the model that caused it.

use phalanx_nn::{BuiltModel, EmbeddingTable, F32, I64, Init, Net, NnError, SelfAttention, Tensor};
use phalanx_nn::{build_evaluation, build_training};

/// The error of a model, and how many lines below `line` it is.
fn error(line: u32, model: impl FnOnce(&Net) -> Tensor) -> (u32, String) {
    let NnError { file, line: found, problem } = build_training("wrong", 8, model).unwrap_err();
    assert!(file.ends_with("nn/tests/errors.rs") || file.ends_with("tests/errors.rs"), "{file}");
    (found - line, problem)
}

#[track_caller]
fn x(net: &Net) -> Tensor {
    net.input("x", F32, [net.batch(), 6])
}

#[test]
fn an_error_has_the_line_of_the_call_and_what_follows_is_ignored() {
    let (lines, problem) = error(line!(), |net| {
        let h = net.at("a").linear(&x(net), 16);
        let bad = &h + &x_again(net);
        let [left, right] = bad.relu().chunks(1);
        (left * right).split(0, [3, 5]).swap_remove(1).mean_all()
    });
    assert_eq!(lines, 2);
    assert_eq!(
        problem,
        "layer `a.add` (add): slot `rhs` is f32[8, 7] but it must stretch with lhs [8, 16]: extents equal or 1 from the \
         innermost on; reshape or transpose one of them"
    );
}

#[track_caller]
fn x_again(net: &Net) -> Tensor {
    net.input("y", F32, [net.batch(), 7])
}

#[test]
fn a_path_twice_names_both_lines() {
    let first = line!() + 2;
    let (lines, problem) = error(line!(), |net| {
        let h = net.at("a").linear(&x(net), 6);
        net.at("a").linear(&h, 6).mean_all()
    });
    assert_eq!(lines, 2);
    let start = "`a.weight` is made a second time, the first time at ";
    assert!(problem.starts_with(start), "{problem}");
    let end = format!("errors.rs:{first}: use another place, or pass on what was made there");
    assert!(problem.ends_with(&end), "{problem}");
}

#[test]
fn names_of_results_inputs_and_layers_are_chosen_once() {
    let (_, problem) = error(line!(), |net| (&x(net) + &x(net)).mean_all());
    assert!(problem.contains("`x` is made a second time"), "{problem}");
    let (_, problem) = error(line!(), |net| {
        let x = x(net);
        let a = x.relu().named(&net.at("a"));
        (a + x.tanh().named(&net.at("a"))).mean_all()
    });
    assert!(problem.contains("`a` is made a second time"), "{problem}");
    let (_, problem) = error(line!(), |net| x(net).named(&net.at("a")).mean_all());
    assert_eq!(problem, "an input or parameter keeps its name: `a` is for results of layers");
}

#[test]
fn a_loss_is_one_number_and_so_is_a_metric() {
    let (lines, problem) = error(line!(), |net| {
        let x = x(net);
        x.square().mean([1])
    });
    assert_eq!(
        (lines, problem.as_str()),
        (2, "the loss is f32[8], but it must be one f32 number: use mean_all")
    );
    let (_, problem) = error(line!(), |net| {
        let x = x(net);
        net.metric("size", &x);
        x.mean_all()
    });
    assert_eq!(problem, "metric `size` is f32[8, 6], but it must be one number: use mean_all");
    for name in ["loss", "size"] {
        let (_, problem) = error(line!(), |net| {
            let loss = x(net).mean_all();
            net.metric("size", &loss);
            net.output(name, &loss);
            loss
        });
        assert_eq!(problem, format!("an output is called `{name}` already: use another name"));
    }
}

#[test]
fn sizes_that_do_not_fit_are_named_with_both_values() {
    let (_, problem) = error(line!(), |net| {
        let x = net.input("x", F32, [net.batch(), 3, 6]);
        net.at("attn").attention(&x, 4).mean_all()
    });
    let wanted = "attention at `attn`: 4 heads do not divide the width 6: choose a divisor, or set head_dim";
    assert_eq!(problem, wanted);
    let (_, problem) = error(line!(), |net| x(net).slice(1, 2..7).mean_all());
    assert_eq!(problem, "2..7 is no part of axis 1 of f32[8, 6]: choose a range within 0..6");
    let (_, problem) = error(line!(), |net| x(net).chunks::<4>(1)[3].mean_all());
    let wanted = "f32[8, 6] has 6 elements along axis 1, which are not 4 equal pieces: choose a divisor of 6";
    assert_eq!(problem, wanted);
    let (_, problem) = error(line!(), |net| net.at("t").embedding(4, 2).first(5).mean_all());
    assert_eq!(problem, "5 rows of a table of 4: use 1 to 4, or a larger table");
    let (_, problem) = error(line!(), |net| {
        let labels = net.input("labels", I64, [net.batch(), 1]);
        x(net).cross_entropy(&labels)
    });
    assert!(problem.contains("slot `labels` is i64[8, 1]"), "{problem}");
}

#[test]
fn tensors_of_another_model_or_of_one_that_is_complete_are_refused() {
    let mut kept: Option<(Net, Tensor)> = None;
    let build = |net: &Net| {
        let x = x(net);
        let loss = x.mean_all();
        kept = Some((net.clone(), x));
        loss
    };
    build_training("first", 2, build).unwrap();
    let (net, stranger) = kept.unwrap();
    assert_eq!(net.at("late").linear(&stranger, 3).relu().dims(), [1; 6], "nothing happens any more");
    let (_, problem) = error(line!(), |net| (x(net) + &stranger).mean_all());
    assert_eq!(problem, "layer `add`: an operand is of another model: make it with the same `net`");
    let error = build_evaluation("third", 2, |_| stranger.clone()).unwrap_err();
    assert!(error.to_string().contains("a tensor of another model"), "{error}");
}

#[test]
fn after_an_error_every_method_can_still_be_called() {
    let built: Result<BuiltModel, NnError> = build_training("wrong", 4, |net| {
        let bad = net.input("x", F32, [net.batch(), 4]) + net.input("y", F32, [3]);
        let ids = net.tokens("ids", 5);
        let table: EmbeddingTable = net.at("t").init(Init::Zeros).embedding(9, 4);
        let x = table.rows(&ids) + table.first(3) + &bad;
        let x = net.at("attn").attention(&x, SelfAttention::new(2).rotary(100.0).kv_heads(1));
        let x = net.at("ln").layer_norm(&net.at("rms").rms_norm(&net.at("d").dropout(0.5, x)));
        let (top, places) = x.softmax().top_k(2);
        let x = Tensor::concat([&top, &places], 0).matmul(&top).matmul_transposed(&bad).gather(1, &places);
        let x = x.clamp(0.0, 1.0).flatten().transpose([1, 0]).broadcast([7, 7]).reverse([0]).max_keep([0]);
        net.metric("top", &x.is_top(&ids).mean_all());
        1.0 / (2.0 - x.pick(&ids).l1(&bad) * x.binary_cross_entropy(&bad) - table.logits(&x).mse(&bad))
    });
    assert!(built.unwrap_err().problem.contains("layer `add`"));
}
