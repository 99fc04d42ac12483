//! What parallel operators move, with numbers: scenarios T37 to T45 of the specification.
//!
//! Most are parallel graphs written out, next to the model they compute.

use phalanx::ir::graph::Graph;
use phalanx::ir::parallel::ParallelGraph;
use phalanx::pipeline::Settings;
use phalanx::{Goal, Optimizer, Plan, PortKind, Session};

fn settings(goal: Goal) -> Settings {
    // Three parts of a sum are no leaves of it: the bits of some scenarios depend on the cut, their numbers do not.
    Settings::new(goal).cores(1).free_bits(true)
}

pub fn model(text: &str) -> Graph {
    let model =
        Graph::parse(text, phalanx_ops::operators()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    model.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    model
}

/// The model that a parallel graph's text is about: without degrees, groups and parallel operators.
fn sequential(parallel: &ParallelGraph) -> Graph {
    let mut builder = phalanx::ir::graph::Builder::new(parallel.name());
    let mut values = Vec::new();
    for (id, layer) in parallel.layers().iter() {
        let operands: Vec<_> =
            layer.operands.iter().map(|&value| values[phalanx::ir::Id::index(value)]).collect();
        let name = parallel.layer_name(id);
        values.extend(match &layer.op {
            op if op.is_parallel() => operands,
            op if op.is_leaf() => {
                vec![builder.leaf(name, op.clone(), parallel.ty(layer.results[0]).global()).expect("a leaf")]
            }
            op => builder.add(name, op.clone(), &operands).expect("shapes are those of the parallel graph"),
        });
    }
    let outputs: Vec<_> =
        parallel.outputs().iter().map(|&value| values[phalanx::ir::Id::index(value)]).collect();
    builder.finish(outputs)
}

/// A session of a parallel graph with gradients.
fn session(text: &str) -> Session {
    let parallel = ParallelGraph::parse(text, phalanx_ops::operators())
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    Session::on_devices(&sequential(&parallel), &parallel, &settings(Goal::Gradients))
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn feed(session: &mut Session, name: &str, values: &[f32]) {
    session.feed(name, &values.to_vec()).unwrap_or_else(|error| panic!("{name}: {error}"));
}

fn read(session: &Session, name: &str) -> Vec<f32> {
    session.read(name).unwrap_or_else(|error| panic!("{name}: {error}")).into_owned()
}

/// The device and the first coordinates of every tile of a tensor.
fn tiles(session: &Session, name: &str) -> Vec<(u32, Vec<usize>)> {
    let mut ports = session.program().ports().iter();
    let port = ports.find(|port| port.name == name).unwrap_or_else(|| panic!("there is no {name}"));
    port.tiles.iter().map(|tile| (tile.slice.lane, tile.origin.clone())).collect()
}

/// T37.
#[test]
fn a_repartition_deals_rows_and_gathers_their_gradients() {
    let mut session = session(
        "parallel @repartition {
           %x = param init=zeros f32[10, 16] on dev0
           %g = input f32[10, 16] on dev0
           %rows = repartition dim=0 degree=2 %x : f32[10/2, 16] on dev0, dev1
           %weights = repartition dim=0 degree=2 %g : f32[10/2, 16] on dev0, dev1
           %shifted = sub_scalar scalar=40 %rows : f32[10/2, 16] on dev0, dev1
           %y = relu %shifted : f32[10/2, 16] on dev0, dev1
           %weighted = mul %y, %weights : f32[10/2, 16] on dev0, dev1
           %parts = reduce kind=sum axes=[0, 1] %weighted : f32[] sum 2 on dev0, dev1
           %loss = reduction degree=2 %parts : f32[] on dev0
           return %loss, %y
         }",
    );
    let x: Vec<f32> = (0..160).map(|i| i as f32).collect();
    let g: Vec<f32> = (0..160).map(|i| ((i * 7) % 11) as f32 - 5.0).collect();
    feed(&mut session, "x", &x);
    feed(&mut session, "g", &g);
    session.run().expect("the run completes");
    assert_eq!(tiles(&session, "y"), [(0, vec![0, 0]), (1, vec![5, 0])], "rows 0 to 4 and rows 5 to 9");
    let y: Vec<f32> = x.iter().map(|x| (x - 40.0).max(0.0)).collect();
    assert_eq!(read(&session, "y"), y);
    assert_eq!(read(&session, "loss"), [y.iter().zip(&g).map(|(y, g)| y * g).sum::<f32>()]);
    assert_eq!(tiles(&session, "x.grad"), [(0, vec![0, 0])], "assembled on the first device");
    let masked: Vec<f32> = x.iter().zip(&g).map(|(&x, &g)| if x > 40.0 { g } else { 0.0 }).collect();
    assert_eq!(read(&session, "x.grad"), masked);
}

/// T38.
#[test]
fn a_combine_undoes_a_repartition_in_every_run() {
    let mut two = session(
        "parallel @there_and_back {
           %x = param init=zeros f32[4, 3] on dev0
           %g = input f32[4, 3] on dev0
           %rows = repartition dim=0 degree=2 %x : f32[4/2, 3] on dev0, dev1
           %whole = combine dim=0 degree=2 %rows : f32[4, 3] on dev1
           %y = relu %whole : f32[4, 3] on dev1
           %weighted = mul %y, %g : f32[4, 3] on dev1
           %loss = reduce kind=sum axes=[0, 1] %weighted : f32[] on dev1
           return %loss, %y
         }",
    );
    let mut one = session(
        "parallel @alone {
           %x = param init=zeros f32[4, 3] on dev0
           %g = input f32[4, 3] on dev0
           %y = relu %x : f32[4, 3] on dev0
           %weighted = mul %y, %g : f32[4, 3] on dev0
           %loss = reduce kind=sum axes=[0, 1] %weighted : f32[] on dev0
           return %loss, %y
         }",
    );
    assert_eq!(two.program().lanes().len(), 2);
    for run in 0..2 {
        let x: Vec<f32> = (0..12).map(|i| ((i * 5 + run) % 7) as f32 - 3.0).collect();
        let g: Vec<f32> = (0..12).map(|i| (i + 10 * run) as f32).collect();
        for session in [&mut one, &mut two] {
            feed(session, "x", &x);
            feed(session, "g", &g);
            session.run().expect("the run completes");
        }
        let y: Vec<f32> = x.iter().map(|x| x.max(0.0)).collect();
        assert_eq!(read(&two, "y"), y, "run {run}");
        for name in ["y", "loss", "x.grad"] {
            assert_eq!(read(&two, name), read(&one, name), "run {run}: {name}");
        }
    }
}

/// T39: the loss weighs every copy with its own row of `g`, which is then that copy's gradient.
#[test]
fn gradients_of_copies_are_added() {
    let mut session = session(
        "parallel @replicate {
           %x = param init=zeros f32[2] on dev0
           %g = input f32[3/3, 2] on dev0, dev1, dev2
           %zeros = constant value=0 f32[3/3, 2] on dev0, dev1, dev2
           %copies = replicate degree=3 %x : f32[2] copy 3 on dev0, dev1, dev2
           %rows = add %zeros, %copies : f32[3/3, 2] on dev0, dev1, dev2
           %weighted = mul %rows, %g : f32[3/3, 2] on dev0, dev1, dev2
           %parts = reduce kind=sum axes=[0, 1] %weighted : f32[] sum 3 on dev0, dev1, dev2
           %loss = reduction degree=3 %parts : f32[] on dev0
           return %loss, %rows
         }",
    );
    feed(&mut session, "x", &[1.0, 2.0]);
    feed(&mut session, "g", &[1.0, 1.0, 2.0, 0.0, -1.0, 5.0]);
    for run in 0..2 {
        session.run().expect("the run completes");
        assert_eq!(tiles(&session, "rows"), [(0, vec![0, 0]), (1, vec![1, 0]), (2, vec![2, 0])]);
        assert_eq!(read(&session, "rows"), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0], "run {run}: three copies");
        assert_eq!(read(&session, "x.grad"), [2.0, 6.0], "run {run}");
        assert_eq!(tiles(&session, "x.grad"), [(0, vec![0])]);
    }
}

/// T40: each device's partial sum is its own row of `x`.
#[test]
fn a_reduction_adds_what_devices_have_and_nothing_else() {
    let mut session = session(
        "parallel @reduction {
           %x = param init=zeros f32[3/3, 2] on dev0, dev1, dev2
           %g = input f32[2] on dev1
           %parts = reduce kind=sum axes=[0] %x : f32[2] sum 3 on dev0, dev1, dev2
           %total = reduction degree=3 %parts : f32[2] on dev1
           %weighted = mul %total, %g : f32[2] on dev1
           %loss = reduce kind=sum axes=[0] %weighted : f32[] on dev1
           return %loss, %total
         }",
    );
    feed(&mut session, "g", &[7.0, 8.0]);
    // Garbage of the first run must not be added to the second.
    feed(&mut session, "x", &[1e30, -3.0, f32::INFINITY, 77.0, 1e30, f32::NAN]);
    session.run().expect("the run completes");
    assert!(read(&session, "total")[1].is_nan());
    feed(&mut session, "x", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    session.run().expect("the run completes");
    assert_eq!(read(&session, "total"), [9.0, 12.0]);
    assert_eq!(tiles(&session, "total"), [(1, vec![0])]);
    assert_eq!(
        read(&session, "x.grad"),
        [7.0, 8.0, 7.0, 8.0, 7.0, 8.0],
        "the gradient of a sum goes to all parts"
    );
    assert_eq!(tiles(&session, "x.grad"), [(0, vec![0, 0]), (1, vec![1, 0]), (2, vec![2, 0])]);
}

/// T40: in single precision 1e8 + 1 is 1e8, so that the result tells the order.
#[test]
fn partial_sums_are_added_as_neighbours_first() {
    let text = |reductions: &str| {
        format!(
            "parallel @pairs {{
               %x = param init=zeros f32[4/4] on dev0, dev1, dev2, dev3
               %parts = reduce kind=sum axes=[0] %x : f32[] sum 4 on dev0, dev1, dev2, dev3
               {reductions}
               return %loss
             }}"
        )
    };
    let once = text("%loss = reduction degree=4 %parts : f32[] on dev3");
    let twice = text(
        "%pairs = reduction degree=2 %parts : f32[] sum 2 on dev0, dev2
         %loss = reduction degree=2 %pairs : f32[] on dev3",
    );
    for text in [once, twice] {
        let mut session = session(&text);
        for (parts, total) in [
            ([1e8, 1.0, -1e8, 1.0], 0.0),
            ([1e8, -1e8, 1.0, 1.0], 2.0),
            ([1.0, 1e8, 1.0, -1e8], 0.0),
            ([1.0, 1.0, 1e8, -1e8], 2.0),
        ] {
            feed(&mut session, "x", &parts);
            session.run().expect("the run completes");
            assert_eq!(read(&session, "loss"), [total], "{parts:?}\n{text}");
            assert_eq!(read(&session, "x.grad"), [1.0; 4]);
        }
    }
}

const TWO_LAYERS: &str = "parallel @two_layers {
    %x = input f32[10, 16] on dev0
    %label = input f32[10, 1] on dev0
    %w1 = param init=uniform(0.25) f32[32, 16] on dev0
    %w2 = param init=uniform(0.25) f32[1, 32] on dev1
    %h = linear activation=relu %x, %w1 : f32[10, 32] on dev0
    %y = linear %h, %w2 : f32[10, 1] on dev1
    %error = sub %y, %label : f32[10, 1] on dev0
    %square = square %error : f32[10, 1] on dev0
    %loss = reduce kind=mean axes=[0, 1] %square : f32[] on dev0
    return %loss, %y
  }";

/// T41.
#[test]
fn two_layers_on_two_devices_train_like_on_one() {
    let parallel =
        ParallelGraph::parse(TWO_LAYERS, phalanx_ops::operators()).expect("the text is a parallel graph");
    let model = sequential(&parallel);
    let optimizer = Optimizer::sgd(0.9).decay(0.001);
    let settings = settings(Goal::Train(optimizer)).free_bits(false);
    let mut one = Session::new(&model, &settings).expect("the model compiles");
    let mut two = Session::on_devices(&model, &parallel, &settings).expect("the parallel graph compiles");
    assert_eq!((one.program().lanes().len(), two.program().lanes().len()), (1, 2));
    let x: Vec<f32> = (0..160).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let label: Vec<f32> = (0..10).map(|i| (i % 3) as f32).collect();
    let mut losses = Vec::new();
    for step in 1..=5 {
        for session in [&mut one, &mut two] {
            feed(session, "x", &x);
            feed(session, "label", &label);
            feed(session, "hyper", &[0.001, 1.0, 1.0, step as f32, 0.0, 0.0, 0.0, 0.0]);
            session.run().expect("the run completes");
        }
        for name in ["w1", "w2", "y", "loss"] {
            let bits =
                |session: &Session| read(session, name).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&two), bits(&one), "step {step}: {name}");
        }
        losses.push(read(&two, "loss")[0]);
    }
    assert!(losses.is_sorted_by(|before, after| before > after), "the loss falls: {losses:?}");
}

/// Layers from `%p` to `%loss`, the values of `%p`, the labels if they are floats, the gradient of `%p`.
type LossCase = (&'static str, [f32; 4], Option<[f32; 4]>, [f32; 4]);

/// T43: losses, and the gradient that each gives to probabilities or, for cross entropy, to their logits.
#[test]
fn losses_give_the_same_gradients_when_the_batch_is_cut() {
    const P: [f32; 4] = [0.2, 0.8, 0.6, 0.4];
    let logits = P.map(f32::ln);
    let one_hot = "%labels = input f32[2, 2]\n%probabilities = softmax axis=1 %p : f32[2, 2]\n\
         %logs = log %probabilities : f32[2, 2]\n%own = mul %logs, %labels : f32[2, 2]\n\
         %all = reduce kind=sum axes=[0, 1] %own : f32[]\n%loss = mul_scalar scalar=-0.5 %all : f32[]";
    let sparse = "%labels = input i64[2]\n%all = cross_entropy ignore=-100 %p, %labels : f32[]\n\
         %loss = mul_scalar scalar=0.5 %all : f32[]";
    let mse = "%labels = input f32[2, 2]\n%error = sub %p, %labels : f32[2, 2]\n\
         %square = square %error : f32[2, 2]\n%loss = reduce kind=mean axes=[0, 1] %square : f32[]";
    let identity =
        "%all = reduce kind=sum axes=[0, 1] %p : f32[]\n%loss = mul_scalar scalar=0.5 %all : f32[]";
    let entropy = [0.1, -0.1, -0.2, 0.2];
    let cases: [LossCase; 4] = [
        (one_hot, logits, Some([0.0, 1.0, 1.0, 0.0]), entropy),
        (sparse, logits, None, entropy),
        (mse, P, Some([0.0; 4]), [0.1, 0.4, 0.3, 0.2]),
        (identity, P, None, [0.5; 4]),
    ];
    for (layers, p, labels, expected) in cases {
        let model =
            model(&format!("graph @loss {{\n%p = param init=zeros f32[2, 2]\n{layers}\nreturn %loss\n}}"));
        let has_labels = layers.contains("%labels = input");
        let rule = |name: &str| format!("[[rule]]\nmatch = \"{name}\"\nshard = {{ 0 = \"dp\" }}\n");
        let rules = rule("p") + &if has_labels { rule("labels") } else { String::new() };
        let cut = Plan::parse(&format!("[mesh]\ndp = 2\n{rules}")).expect("the text is a plan");
        let mut gradients = Vec::new();
        for plan in [Plan::default(), cut] {
            let devices = plan.mesh.devices();
            let settings = settings(Goal::Gradients).plan(plan).free_bits(false);
            let mut session = Session::new(&model, &settings).expect("the model compiles");
            assert_eq!(session.program().lanes().len(), devices);
            feed(&mut session, "p", &p);
            if let Some(labels) = labels {
                feed(&mut session, "labels", &labels);
            } else if has_labels {
                session.feed("labels", &vec![1_i64, 0]).expect("labels are fed");
            }
            session.run().expect("the run completes");
            let found = read(&session, "p.grad");
            let is_near = |(found, expected): (&f32, &f32)| (found - expected).abs() < 1e-6;
            assert!(found.iter().zip(&expected).all(is_near), "{found:?}, not {expected:?}: {layers}");
            gradients.push(found);
        }
        assert_eq!(gradients[0], gradients[1], "{layers}");
    }
}

/// T44.
#[test]
fn weights_start_the_same_however_they_lie() {
    let model = model(
        "graph @weights {
           %x = input f32[8, 4]
           %w = param init=uniform(0.5) f32[6, 4]
           %v = param init=uniform(0.5) f32[6, 4]
           %n = param init=normal(0.1) f32[6, 4]
           %a = linear %x, %w : f32[8, 6]
           %b = linear %x, %v : f32[8, 6]
           %c = linear %x, %n : f32[8, 6]
           %d = add %a, %b : f32[8, 6]
           %e = add %c, %d : f32[8, 6]
           %loss = reduce kind=sum axes=[0, 1] %e : f32[]
           return %loss
         }",
    );
    let copied = "[mesh]\ndp = 4\n[[rule]]\nmatch = \"x\"\nshard = { 0 = \"dp\" }\n";
    let cut = "[mesh]\na = 2\nb = 2\n[[rule]]\nmatch = \"[wvn]\"\nshard = { 0 = \"a\", 1 = \"b\" }\n";
    let stored = "[mesh]\na = 2\nb = 2\n[[rule]]\nmatch = \"[wvn]\"\nstore = { 0 = \"a\", 1 = \"b\" }\n";
    let start = |plan: Plan, seed: u64| {
        let settings = settings(Goal::Train(Optimizer::adam())).plan(plan).seed(seed);
        Session::new(&model, &settings).expect("the model compiles")
    };
    let one = start(Plan::default(), 1);
    let weights = one.weights().expect("weights can be read");
    assert_ne!(weights["w"], weights["v"], "each parameter has its own numbers");
    assert!(weights["w"].iter().all(|w| w.abs() <= 0.5) && weights["w"].iter().any(|w| w.abs() > 0.25));
    let others = start(Plan::default(), 2).weights().expect("weights can be read");
    assert_ne!(weights, others, "another seed gives other weights");
    for (text, count) in [(copied, 4), (cut, 4), (stored, 4)] {
        let session = start(Plan::parse(text).expect("the text is a plan"), 1);
        assert_eq!(tiles(&session, "w").len(), count, "{text}");
        assert_eq!(session.weights().expect("weights can be read"), weights, "{text}");
        let states: Vec<_> = session.names(PortKind::State).collect();
        assert_eq!(states.len(), 6, "two moments for each parameter: {states:?}");
        for name in states {
            assert!(read(&session, name).iter().all(|&state| state == 0.0), "{name}");
        }
    }
}

/// T45, alone, with the uses on two devices, and cut into three.
#[test]
fn gradients_of_all_uses_are_added() {
    let text = |[x, t, twice]: [&str; 3], [cut, parts]: [&str; 2], total: &str| {
        format!(
            "parallel @fan_out {{
               %x = param init=zeros f32[3{cut}] on {x}
               %t = relu %x : f32[3{cut}] on {t}
               %twice = mul_scalar scalar=2 %t : f32[3{cut}] on {twice}
               %out = add %twice, %t : f32[3{cut}] on {t}
               %parts = reduce kind=sum axes=[0] %out : f32[]{parts} on {t}
               {total}
             }}"
        )
    };
    let whole = ["", ""];
    let alone = text(["dev0"; 3], whole, "return %parts, %out");
    let apart = text(["dev0", "dev0", "dev1"], whole, "return %parts, %out");
    let three = "dev0, dev1, dev2";
    let total = "%loss = reduction degree=3 %parts : f32[] on dev0\nreturn %loss, %out";
    for text in [alone, apart, text([three; 3], ["/3", " sum 3"], total)] {
        let mut session = session(&text);
        feed(&mut session, "x", &[1.0, -2.0, 3.0]);
        session.run().expect("the run completes");
        assert_eq!(read(&session, "out"), [3.0, 0.0, 9.0], "{text}");
        assert_eq!(read(&session, "x.grad"), [3.0, 0.0, 3.0], "{text}");
    }
}

/// Values shared by branches on three devices: copies are shared, gradients are added on the way home; the bits stay.
#[test]
fn branches_on_several_devices_give_the_bits_of_one() {
    let text = |[two, both]: [&str; 2]| {
        format!(
            "parallel @branches {{
               %x = param init=zeros f32[8] on dev0
               %a = exp %x : f32[8] on dev0
               %b = sigmoid %a : f32[8] on dev0
               %c = tanh %b : f32[8] on {two}
               %d = mul %c, %b : f32[8] on {two}
               %e = mul %a, %b : f32[8] on {both}
               %f = mul %e, %x : f32[8] on dev0
               %g = mul %d, %x : f32[8] on {two}
               %s = add %f, %g : f32[8] on dev0
               %loss = reduce kind=sum axes=[0] %s : f32[] on dev0
               return %loss
             }}"
        )
    };
    let x: Vec<f32> = (0..8).map(|i| (i as f32 * 0.37).sin()).collect();
    let results = [["dev0", "dev0"], ["dev1", "dev[1-2]"], ["dev2", "dev[0-1]"]].map(|devices| {
        let mut session = session(&text(devices));
        feed(&mut session, "x", &x);
        session.run().expect("the run completes");
        (read(&session, "loss"), read(&session, "x.grad"))
    });
    assert!(results[0].1.iter().all(|gradient| gradient.is_finite() && *gradient != 0.0));
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}

/// A function that gives back its arguments in another order, one of them twice, on one device and on two.
#[test]
fn a_permutation_of_the_inputs_is_returned() {
    for devices in ["dev0", "dev0, dev1"] {
        let cut = if devices == "dev0" { "" } else { "/2" };
        let text = format!(
            "parallel @permuted {{
               %a = input f32[4{cut}] on {devices}
               %b = input f32[4{cut}] on {devices}
               %c = input f32[4{cut}] on {devices}
               return %c, %a, %b, %a
             }}"
        );
        let parallel = ParallelGraph::parse(&text, phalanx_ops::operators()).expect("a graph");
        let mut session = Session::on_devices(&sequential(&parallel), &parallel, &settings(Goal::Infer))
            .unwrap_or_else(|error| panic!("{error}\n{text}"));
        for run in 0..2 {
            let values =
                |first: f32| (0..4).map(|at| first + run as f32 * 100.0 + at as f32).collect::<Vec<_>>();
            let inputs = [("a", values(0.0)), ("b", values(10.0)), ("c", values(20.0))];
            inputs.iter().for_each(|(name, values)| feed(&mut session, name, values));
            session.run().expect("the run completes");
            for (name, values) in &inputs {
                assert_eq!(read(&session, name), *values, "{name} in run {run} on {devices}");
            }
        }
    }
}

/// A graph on some devices of a machine, with numbers of their own: others have no lane and no memory.
#[test]
fn a_graph_may_be_on_some_devices_only() {
    let text = |first: &str, second: &str| {
        format!(
            "parallel @part {{
               %x = param init=zeros f32[4] on {first}
               %y = exp %x : f32[4] on {second}
               %loss = reduce kind=sum axes=[0] %y : f32[] on {first}
               return %loss
             }}"
        )
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = |first: &'static str, second: &'static str| {
            let mut session = session(&text(first, second));
            let devices: Vec<u32> = session.program().homes().map(|lane| lane.device).collect();
            feed(&mut session, "x", &[0.5, -1.0, 2.0, 0.0]);
            session.run().expect("the run completes");
            (devices, read(&session, "loss"), read(&session, "x.grad"))
        };
        let pairs = [("dev0", "dev1"), ("dev2", "dev5"), ("dev7", "dev7")];
        let threads = pairs.map(|(first, second)| scope.spawn(move || run(first, second)));
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let devices: Vec<_> = results.iter().map(|result| result.0.clone()).collect();
    assert_eq!(devices, [vec![0, 1], vec![2, 5], vec![7]]);
    for result in &results[1..] {
        assert_eq!((&result.1, &result.2), (&results[0].1, &results[0].2), "the same bits");
    }
}
