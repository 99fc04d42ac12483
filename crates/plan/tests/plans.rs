//! Plans as text, everything that can be wrong with one, and small parallel graphs written out.

use std::collections::BTreeMap;

use phalanx_ir::graph::Graph;
use phalanx_plan::{Mesh, Pipeline, Plan, PlanError, PlanRule, parallelize};

const MLP: &str = "graph @mlp {
  %x = input f32[4, 6]
  %y = input i64[4]
  %up.weight = param init=ones f32[8, 6]
  %up.bias = param init=zeros f32[8]
  %up = linear activation=relu %x, %up.weight, %up.bias : f32[4, 8]
  %down.weight = param init=ones f32[2, 8]
  %down.bias = param init=zeros f32[2]
  %down = linear activation=tanh %up, %down.weight, %down.bias : f32[4, 2]
  %loss.sum = cross_entropy ignore=-100 %down, %y : f32[]
  %loss.count = count_labels ignore=-100 %y : f32[]
  %loss = div %loss.sum, %loss.count : f32[]
  return %loss
}";

fn mlp() -> Graph {
    Graph::parse(MLP, phalanx_ops::operators()).expect("the text is a graph")
}

fn laid_out(plan: &str) -> String {
    let plan = Plan::parse(plan).expect("the text is a plan");
    let parallel = parallelize(&mlp(), &plan).expect("the plan fits the model");
    parallel.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{parallel}"));
    parallel.to_string()
}

#[test]
fn plans_are_what_they_are_written_as() {
    let dims = |dims: &[(usize, &[&str])]| -> BTreeMap<usize, Vec<String>> {
        dims.iter().map(|(dim, axes)| (*dim, axes.iter().map(|axis| axis.to_string()).collect())).collect()
    };
    let stored = PlanRule {
        pattern: "*.weight".into(),
        shard: dims(&[(1, &["z"])]),
        store: dims(&[(0, &["a b"]), (2, &["z", "m"])]),
        regather: false,
    };
    let plan = Plan {
        name: "a \"name\"".into(),
        mesh: Mesh { axes: vec![("z".into(), 2), ("a b".into(), 3), ("m".into(), 1)] },
        microbatches: 4,
        rules: vec![stored, PlanRule { shard: dims(&[(0, &[])]), ..PlanRule::default() }],
        pipeline: Some(Pipeline {
            axis: "m".into(),
            stages: vec![vec!["h.[0-3].*".into(), "x".into()], vec![]],
        }),
    };
    let text = "name = 'a \"name\"'
microbatches = 4

[mesh]
z = 2
\"a b\" = 3
m = 1

[pipeline]
axis = \"m\"
stages = [
  [\"h.[0-3].*\", \"x\"],
  [],
]

[[rule]]
match = \"*.weight\"
shard = { 1 = \"z\" }
store = { 0 = \"a b\", 2 = [\"z\", \"m\"] }
regather = false

[[rule]]
match = \"*\"
shard = { 0 = [] }
";
    assert_eq!(plan.to_text(), text);
    assert_eq!(Plan::parse(text), Ok(plan));
    let old = text.replace("regather", "again");
    assert_eq!(Plan::parse(&old), Plan::parse(text), "the name of version 0.1");
    let default = Plan::default();
    assert_eq!(Plan::parse(&default.to_text()), Ok(default.clone()));
    assert_eq!(default.mesh.devices(), 1);
}

#[test]
fn what_is_no_plan_is_refused_with_its_line() {
    let error = |text: &str| Plan::parse(text).expect_err(text).to_string();
    assert_eq!(
        error("microbatches = 2\nmesh_ = 3\n"),
        "line 2: there is no key `mesh_` of a plan: did you mean `mesh`?"
    );
    assert_eq!(
        error("[[rule]]\nmatch = \"x\"\nsplit = 3\n"),
        "line 3: there is no key `split` of a rule: use one of match, shard, store, regather, again"
    );
    assert!(error("[mesh]\ndp = -1").contains("line 2"));
    assert!(error("[[rule]]\nshard = {}").contains("missing field `match`"));
    let axes = error("[[rule]]\nmatch = \"x\"\nshard = { 0 = 3 }");
    assert!(axes.contains("an axis like \"dp\" or a list of axes"), "{axes}");
    assert_eq!(
        error("[[rule]]\nmatch = \"x\"\nshard = { batch = \"dp\" }"),
        "rule `x`: `batch` is not a dimension; write its number, such as 0 = \"dp\""
    );
}

const MESH: &str = "[mesh]\ndp = 2\ntp = 3\none = 1\n";

/// Rules with the message they give on the model above.
const WRONG: &[(&str, &str)] = &[
    (
        "match = \"upp.wait\"\nshard = { 0 = \"dp\" }",
        "a rule: `upp.wait` matches no tensor of the model; the closest names are `up.weight`, `up.bias`, `up`",
    ),
    (
        "match = \"x\"\nshard = { 0 = \"data\" }",
        "rule `x` names the axis `data` but the mesh has `dp`, `tp`, `one`; use one of these or add it to [mesh]",
    ),
    (
        "match = \"up*\"\nshard = { 1 = \"dp\" }",
        "rule `up*` cuts dim 1 of `up.bias`, which is f32[8]; name a dim below 1 or match fewer tensors",
    ),
    (
        "match = \"up.weight\"\nshard = { 0 = [\"dp\", \"tp\"] }",
        "`up.weight` is f32[8, 6]: its dim 0 of 8 cannot be cut into 6 (dp=2 tp=3); use 2, 4 or 8",
    ),
    (
        "match = \"up\"\nstore = { 0 = \"dp\" }",
        "rule `up` has `store` for `up`, a result of linear; only parameters are stored, use `shard`",
    ),
    (
        "match = \"x\"\nshard = { 0 = \"dp\", 1 = \"dp\" }",
        "`x` is cut by `dp` both in shard of dim 0 and in shard of dim 1; an axis can cut a tensor once",
    ),
    (
        "match = \"up.weight\"\nshard = { 0 = \"dp\" }\nstore = { 0 = \"dp\" }",
        "`up.weight` is cut by `dp` both in shard of dim 0 and in store of dim 0; an axis can cut a tensor once",
    ),
    (
        "match = \"x\"\nshard = { 0 = \"dp\" }\n[[rule]]\nmatch = \"?\"\nshard = { 0 = [] }",
        "two rules disagree about `x`: shard of dim 0 is dp=2 by `x` and whole by `?`; make the patterns exclude each other \
         or the values equal",
    ),
    (
        "match = \"up.weight\"\nstore = { 0 = \"dp\" }\n[[rule]]\nmatch = \"*.weight\"\nstore = { 1 = \"one\" }\nagain = false",
        "two rules disagree about `up.weight`: regather is true by `up.weight` and false by `*.weight`; make the patterns \
         exclude each other or the values equal",
    ),
    ("match = \"[x\"\nshard = {}", "pattern `[x` has a set without end or content; write sets as [0-9]"),
];

#[test]
fn wrong_rules_are_explained() {
    for (rule, message) in WRONG {
        let plan = Plan::parse(&format!("{MESH}[[rule]]\n{rule}")).expect("the text is a plan");
        assert_eq!(parallelize(&mlp(), &plan).expect_err(rule).to_string(), *message);
    }
}

#[test]
fn wrong_meshes_and_pipelines_are_explained() {
    let error = |text: &str| {
        let applied = Plan::parse(text).and_then(|plan| parallelize(&mlp(), &plan));
        applied.expect_err(text).to_string()
    };
    let unread = |text: &str| Plan::parse(text).expect_err(text).to_string();
    let empty = "mesh axis `dp` has 0 places; give it at least 1";
    assert_eq!(unread("[mesh]\ndp = 0"), empty);
    let plan = Plan { mesh: Mesh { axes: vec![("dp".into(), 0)] }, ..Plan::default() };
    assert_eq!(parallelize(&mlp(), &plan).expect_err("no devices").to_string(), empty);
    for (text, problem) in [
        (
            "name = \"a\"\nmicrobatch = 2",
            "line 2: there is no key `microbatch` of a plan: did you mean `microbatches`?",
        ),
        (
            "[[rule]]\nmatch = \"x\"\nsahrd = {}",
            "line 3: there is no key `sahrd` of a rule: did you mean `shard`?",
        ),
        ("[pipeline]\nq = 1", "line 2: there is no key `q` of a pipeline: use one of axis, stages"),
    ] {
        assert_eq!(unread(text), problem);
    }
    assert_eq!(
        error("[pipeline]\naxis = \"pp\"\nstages = []"),
        "the pipeline names the axis `pp` but the mesh has no axes; use one of these or add it to [mesh]"
    );
    assert_eq!(
        error("[mesh]\npp = 2\n[pipeline]\naxis = \"pp\"\nstages = [[\"*\"]]"),
        "the pipeline has 1 stages but its axis `pp` has 2 places; make them equal"
    );
    assert_eq!(
        error("[mesh]\npp = 2\n[pipeline]\naxis = \"pp\"\nstages = [[\"up\"], [\"dawn*\"]]"),
        "stage 1: `dawn*` matches no layer of the model; the closest names are `down.weight`, `down.bias`, `down`"
    );
    assert_eq!(
        error(
            "[mesh]\npp = 1\n[pipeline]\naxis = \"pp\"\nstages = [[\"*\"]]\n[[rule]]\nmatch = \"x\"\nshard = { 0 = \"pp\" }"
        ),
        "rule `x` cuts by `pp`, the axis of the pipeline; use another axis"
    );
    assert_eq!(
        error("microbatches = 4\n[mesh]\ndp = 2\n[[rule]]\nmatch = \"?\"\nshard = { 0 = \"dp\" }"),
        "input `x` is f32[4, 6]; its batch cannot be cut into 4 parts of each of 2 blocks: use 2"
    );
    // The rule fits the whole result but not that of a microbatch.
    assert_eq!(
        error("microbatches = 4\n[mesh]\ndp = 2\n[[rule]]\nmatch = \"up\"\nshard = { 0 = \"dp\" }"),
        "`up.mb0` is f32[1, 8]: its dim 0 of 1 cannot be cut into 2 (dp); use 1"
    );
    assert_eq!(
        error("[mesh]\na = 4611686018427387904\nb = 4"),
        "the mesh has more than 131072 devices; make its axes smaller"
    );
    let two = Plan { mesh: Mesh { axes: vec![("a".into(), 2), ("a".into(), 2)] }, ..Plan::default() };
    let error = parallelize(&mlp(), &two).expect_err("two axes have one name");
    assert_eq!(error, PlanError::TwoAxes { axis: "a".into() });
}

#[test]
fn data_parallel_written_out() {
    let plan = "[mesh]\ndp = 2\n[[rule]]\nmatch = \"[xy]\"\nshard = { 0 = \"dp\" }";
    assert_eq!(
        laid_out(plan),
        "parallel @mlp {
  %x = input f32[4/2, 6] on dev0, dev1
  %y = input i64[4/2] on dev0, dev1
  %up.weight = param init=ones f32[8, 6] on dev[0-1]
  %up.bias = param init=zeros f32[8] on dev[0-1]
  %up.weight.copies = replicate degree=2 %up.weight : f32[8, 6] copy 2 on dev0, dev1
  %up.bias.copies = replicate degree=2 %up.bias : f32[8] copy 2 on dev0, dev1
  %up = linear activation=relu %x, %up.weight.copies, %up.bias.copies : f32[4/2, 8] on dev0, dev1
  %down.weight = param init=ones f32[2, 8] on dev[0-1]
  %down.bias = param init=zeros f32[2] on dev[0-1]
  %down.weight.copies = replicate degree=2 %down.weight : f32[2, 8] copy 2 on dev0, dev1
  %down.bias.copies = replicate degree=2 %down.bias : f32[2] copy 2 on dev0, dev1
  %down = linear activation=tanh %up, %down.weight.copies, %down.bias.copies : f32[4/2, 2] on dev0, dev1
  %loss.sum.partial = cross_entropy ignore=-100 %down, %y : f32[] sum 2 on dev0, dev1
  %loss.sum = reduction degree=2 %loss.sum.partial : f32[] on dev[0-1]
  %loss.count.partial = count_labels ignore=-100 %y : f32[] sum 2 on dev0, dev1
  %loss.count = reduction degree=2 %loss.count.partial : f32[] on dev[0-1]
  %loss = div %loss.sum, %loss.count : f32[] on dev[0-1]
  return %loss
}"
    );
}

#[test]
fn fully_sharded_written_out() {
    let plan = "[mesh]\nfsdp = 2\n[[rule]]\nmatch = \"[xy]\"\nshard = { 0 = \"fsdp\" }
[[rule]]\nmatch = \"*.weight\"\nstore = { 0 = \"fsdp\" }\nagain = true
[[rule]]\nmatch = \"*.bias\"\nstore = { 0 = \"fsdp\" }\nagain = false";
    assert_eq!(
        laid_out(plan),
        "parallel @mlp {
  %x = input f32[4/2, 6] on dev0, dev1
  %y = input i64[4/2] on dev0, dev1
  %up.weight = param init=ones f32[8/2, 6] on dev0, dev1
  %up.bias = param init=zeros f32[8/2] on dev0, dev1
  %up.weight.whole = combine dim=0 degree=2 regather=true %up.weight : f32[8, 6] on dev[0-1]
  %up.weight.copies = replicate degree=2 %up.weight.whole : f32[8, 6] copy 2 on dev0, dev1
  %up.bias.whole = combine dim=0 degree=2 %up.bias : f32[8] on dev[0-1]
  %up.bias.copies = replicate degree=2 %up.bias.whole : f32[8] copy 2 on dev0, dev1
  %up = linear activation=relu %x, %up.weight.copies, %up.bias.copies : f32[4/2, 8] on dev0, dev1
  %down.weight = param init=ones f32[2/2, 8] on dev0, dev1
  %down.bias = param init=zeros f32[2/2] on dev0, dev1
  %down.weight.whole = combine dim=0 degree=2 regather=true %down.weight : f32[2, 8] on dev[0-1]
  %down.weight.copies = replicate degree=2 %down.weight.whole : f32[2, 8] copy 2 on dev0, dev1
  %down.bias.whole = combine dim=0 degree=2 %down.bias : f32[2] on dev[0-1]
  %down.bias.copies = replicate degree=2 %down.bias.whole : f32[2] copy 2 on dev0, dev1
  %down = linear activation=tanh %up, %down.weight.copies, %down.bias.copies : f32[4/2, 2] on dev0, dev1
  %loss.sum.partial = cross_entropy ignore=-100 %down, %y : f32[] sum 2 on dev0, dev1
  %loss.sum = reduction degree=2 %loss.sum.partial : f32[] on dev[0-1]
  %loss.count.partial = count_labels ignore=-100 %y : f32[] sum 2 on dev0, dev1
  %loss.count = reduction degree=2 %loss.count.partial : f32[] on dev[0-1]
  %loss = div %loss.sum, %loss.count : f32[] on dev[0-1]
  return %loss
}"
    );
}

/// Bias and function of the layer with cut inputs come after the sum.
#[test]
fn tensor_parallel_written_out() {
    let plan = "[mesh]\ntp = 2\n[[rule]]\nmatch = \"up.*\"\nshard = { 0 = \"tp\" }
[[rule]]\nmatch = \"down.weight\"\nshard = { 1 = \"tp\" }";
    assert_eq!(
        laid_out(plan),
        "parallel @mlp {
  %x = input f32[4, 6] on dev[0-1]
  %y = input i64[4] on dev[0-1]
  %up.weight = param init=ones f32[8/2, 6] on dev0, dev1
  %up.bias = param init=zeros f32[8/2] on dev0, dev1
  %x.copies = replicate degree=2 %x : f32[4, 6] copy 2 on dev0, dev1
  %up = linear activation=relu %x.copies, %up.weight, %up.bias : f32[4, 8/2] on dev0, dev1
  %down.weight = param init=ones f32[2, 8/2] on dev0, dev1
  %down.bias = param init=zeros f32[2] on dev[0-1]
  %down.sum.partial = linear %up, %down.weight : f32[4, 2] sum 2 on dev0, dev1
  %down.sum = reduction degree=2 %down.sum.partial : f32[4, 2] on dev[0-1]
  %down.biased = add %down.sum, %down.bias : f32[4, 2] on dev[0-1]
  %down = tanh %down.biased : f32[4, 2] on dev[0-1]
  %loss.sum = cross_entropy ignore=-100 %down, %y : f32[] on dev[0-1]
  %loss.count = count_labels ignore=-100 %y : f32[] on dev[0-1]
  %loss = div %loss.sum, %loss.count : f32[] on dev[0-1]
  return %loss
}"
    );
}

/// Stages take layers by name, others go with their operands, parameters with their users; the batch stays in its blocks.
#[test]
fn a_pipeline_written_out() {
    let plan = "microbatches = 2\n[mesh]\npp = 2\n[pipeline]\naxis = \"pp\"\nstages = [[\"up\"], [\"down\", \"*.count\"]]";
    assert_eq!(
        laid_out(plan),
        "parallel @mlp {
  %x = input f32[4, 6] on dev[0-1]
  %x.mb.0, %x.mb.1 = split axis=0 sizes=[2, 2] %x : f32[2, 6], f32[2, 6] on dev[0-1]
  %y = input i64[4] on dev[0-1]
  %y.mb.0, %y.mb.1 = split axis=0 sizes=[2, 2] %y : i64[2], i64[2] on dev[0-1]
  %up.weight = param init=ones f32[8, 6] on dev0
  %up.bias = param init=zeros f32[8] on dev0
  %up.mb0 = linear activation=relu %x.mb.0, %up.weight, %up.bias : f32[2, 8] on dev0 microbatch 0 of 2 in 1
  %up.mb1 = linear activation=relu %x.mb.1, %up.weight, %up.bias : f32[2, 8] on dev0 at 1 microbatch 1 of 2 in 1
  %down.weight = param init=ones f32[2, 8] on dev1
  %down.bias = param init=zeros f32[2] on dev1
  %down.mb0 = linear activation=tanh %up.mb0, %down.weight, %down.bias : f32[2, 2] on dev1 microbatch 0 of 2 in 1
  %down.mb1 = linear activation=tanh %up.mb1, %down.weight, %down.bias : f32[2, 2] on dev1 at 1 microbatch 1 of 2 in 1
  %loss.sum.mb0 = cross_entropy ignore=-100 %down.mb0, %y.mb.0 : f32[] on dev1 microbatch 0 of 2 in 1
  %loss.sum.mb1 = cross_entropy ignore=-100 %down.mb1, %y.mb.1 : f32[] on dev1 at 1 microbatch 1 of 2 in 1
  %loss.sum = add %loss.sum.mb0, %loss.sum.mb1 : f32[] on dev1 at 1
  %loss.count = count_labels ignore=-100 %y : f32[] on dev1
  %loss = div %loss.sum, %loss.count : f32[] on dev1 at 1
  return %loss
}"
    );
}

fn conversions(layers: &str, plan: &str) -> Vec<String> {
    let graph = Graph::parse(format!("graph @g {{\n{layers}\n}}"), phalanx_ops::operators())
        .expect("the text is a graph");
    let plan = Plan::parse(plan).expect("the text is a plan");
    let parallel = parallelize(&graph, &plan).expect("the plan fits the model");
    parallel.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{parallel}"));
    let layers = parallel.layers().iter().filter(|(_, layer)| layer.op.is_parallel());
    layers.map(|(id, layer)| format!("{} {}", parallel.layer_name(id), layer.op.to_text().0)).collect()
}

/// Attention over cut time has no rule: its operands are joined, once for each value.
#[test]
fn what_an_operator_cannot_take_is_joined() {
    let layers = "%x = input f32[2, 4, 2, 8]\n%y = attention causal=true scale=1 %x, %x, %x : f32[2, 4, 2, 8]\nreturn %y";
    let plan = "[mesh]\nsp = 4\n[[rule]]\nmatch = \"*\"\nshard = { 1 = \"sp\" }";
    assert_eq!(conversions(layers, plan), ["x.whole combine", "y repartition"]);
}

/// A mean over a cut batch is the sum of partial sums, scaled.
#[test]
fn a_mean_over_a_cut_dimension_scales_after_the_sum() {
    let layers = "%x = input f32[8, 3]\n%y = reduce kind=mean axes=[0, 1] %x : f32[]\nreturn %y";
    let plan = "[mesh]\ndp = 4\n[[rule]]\nmatch = \"x\"\nshard = { 0 = \"dp\" }";
    assert_eq!(conversions(layers, plan), ["y.sum reduction"]);
}

/// Joining is shared by the last users of a value and by no others: the order of its gradient's addends stays.
#[test]
fn shared_conversions_keep_the_order_of_gradients() {
    let model = |uses: [&str; 3]| {
        let layer = |(at, of): (usize, &&str)| match *of {
            "whole" => format!("%y{at} = softmax axis=0 %p : f32[4, 4]"),
            _ => format!("%y{at} = exp %p : f32[4, 4]"),
        };
        let layers: Vec<_> = uses.iter().enumerate().map(layer).collect();
        format!(
            "%x = param init=ones f32[4, 4]\n%p = neg %x : f32[4, 4]\n{}\nreturn %y0, %y1, %y2",
            layers.join("\n")
        )
    };
    let plan = "[mesh]\ndp = 2\n[[rule]]\nmatch = \"x\"\nshard = { 0 = \"dp\" }";
    let joins = |uses: [&str; 3]| conversions(&model(uses), plan).len();
    assert_eq!(joins(["whole", "whole", "whole"]), 1);
    assert_eq!(joins(["cut", "whole", "whole"]), 1);
    assert_eq!(joins(["whole", "cut", "whole"]), 2);
    assert_eq!(joins(["whole", "whole", "cut"]), 2);
}
