//! A transformer written as a function, with its own data: it learns to continue sequences of numbers. The same program
//! runs on many devices (`--plan fsdp2-tp2`, `--devices`) and as many processes (`mpirun -n 4`), with the same bits.

use phalanx::nn::{Args, Init, Net, Tensor, Training};

fn gpt(net: &Net, [layers, heads, width, vocab, time]: [usize; 5]) -> Tensor {
    let net = &net.init(Init::Normal(0.02));
    let (tokens, targets) = (net.tokens("tokens", time), net.tokens("targets", time));
    let (words, places) = (net.at("wte").embedding(vocab, width), net.at("wpe").embedding(time, width));
    let mut x = &words.rows(&tokens) + &places.first(time);
    for block in 0..layers {
        let net = net.at("h").at(block);
        let h = net.at("attn").attention(&net.at("ln_1").layer_norm(&x), heads);
        x = x + net.at("attn").dropout(0.1, h);
        let h = net.at("fc").linear(&net.at("ln_2").layer_norm(&x), 4 * width).gelu();
        x = x + net.at("mlp").dropout(0.1, net.at("out").linear(&h, width));
    }
    words.logits(&net.at("ln_f").layer_norm(&x)).cross_entropy(&targets) // tied head: the same table
}

/// Endless windows of arithmetic sequences, and the same windows one token later.
fn windows(batch: usize, time: usize) -> impl Iterator<Item = (Vec<i64>, Vec<i64>)> {
    (0..).map(move |step| {
        let token = |row: usize, at: usize| ((row * 7 + step * 11 + at * (1 + (row + step) % 3)) % 32) as i64;
        let window = |shift| (0..batch).flat_map(move |row| (0..time).map(move |at| token(row, at + shift)));
        (window(0).collect(), window(1).collect())
    })
}

fn main() -> phalanx::Result<()> {
    let args = Args::parse(); // --plan fsdp2 --devices 2 --batch 32 --checkpoint out --resume ...
    let mut run = Training::new(&args, |net| gpt(net, [2, 4, 32, 32, 16])).adamw(3e-3, 0.1).start()?;
    let first = run.steps() as usize;
    for (tokens, targets) in windows(run.batch(), 16).take(200).skip(first) {
        let step = run.step([("tokens", &tokens), ("targets", &targets)])?;
        if step.number % 50 == 0 && run.rank() == 0 {
            println!("{step}");
        }
    }
    Ok(())
}
