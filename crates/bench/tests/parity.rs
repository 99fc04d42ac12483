//! Five AdamW steps of small transformers, against losses, gradients and weights computed by PyTorch.

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use phalanx::train::TrainConfig;
use phalanx_bench::parity::{Outcome, Request, Tensor, run, write};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// Relative error of each loss.
const LOSS: f64 = 2e-6;
/// Error of a first-step gradient, relative to the largest element of its tensor.
const GRADIENT: f64 = 1e-4;
/// Error of a weight after the last step.
const WEIGHT: f64 = 1e-4;

const FILES: [&str; 4] = ["config.json", "model.safetensors", "batch.safetensors", "expected.safetensors"];

/// A recorded model, unpacked into a folder that is removed in the end.
struct Recorded(PathBuf);

impl Recorded {
    fn unpack(model: &str, test: &str) -> Recorded {
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parity").join(model);
        let folder =
            std::env::temp_dir().join(format!("phalanx-parity-{model}-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
        for file in FILES {
            let bytes = std::fs::read(packed.join(format!("{file}.gz"))).expect("the recorded file is there");
            let mut unpacked = Vec::new();
            GzDecoder::new(&bytes[..]).read_to_end(&mut unpacked).expect("the recorded file decompresses");
            std::fs::write(folder.join(file), unpacked).expect("a temporary file can be written");
        }
        Recorded(folder)
    }

    fn request(&self, accumulate: usize, cores: usize) -> Request {
        let (hf, batch) = (self.0.clone(), self.0.join("batch.safetensors"));
        let config =
            TrainConfig::default().accumulate(accumulate).cores(cores).steps(5).lr(1e-3).weight_decay(0.1);
        Request { hf, batch, config: config.beta1(0.9).beta2(0.95).eps(1e-8) }
    }

    /// The recorded tensors, all of 32-bit floats.
    fn expected(&self) -> Vec<(String, Tensor)> {
        tensors(&self.0.join("expected.safetensors"))
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tensors(path: &Path) -> Vec<(String, Tensor)> {
    let bytes = std::fs::read(path).expect("the file is there");
    let file = SafeTensors::deserialize(&bytes).expect("the file is well formed");
    let floats = |data: &[u8]| data.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect();
    let tensor = |view: TensorView<'_>| Tensor { shape: view.shape().to_vec(), data: floats(view.data()) };
    file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect()
}

fn find<'a>(outcome: &'a Outcome, name: &str) -> &'a Tensor {
    let found = outcome.tensors.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("`{name}` is in the outcome")).1
}

fn largest_error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len(), "as many elements");
    let error = |(&found, &expected): (&f32, &f32)| (f64::from(found) - f64::from(expected)).abs();
    let errors = found.iter().zip(expected).map(error);
    errors.fold(0.0, |worst, error| if error.is_nan() { f64::INFINITY } else { worst.max(error) })
}

fn check(model: &str) {
    let recorded = Recorded::unpack(model, "steps");
    let outcome = run(&recorded.request(1, 2), None).expect("the model runs");
    let expected = recorded.expected();
    assert_eq!(outcome.tensors.len(), expected.len(), "one tensor for each recorded one");
    for (name, Tensor { shape, data: expected }) in &expected {
        let Tensor { shape: found_shape, data: found } = find(&outcome, name);
        assert_eq!(found_shape, shape, "{model}: shape of {name}");
        let error = largest_error(found, expected);
        let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(f64::from(x.abs())));
        if name == "loss" {
            assert_eq!(outcome.losses, *found);
            for (step, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                let error = (f64::from(found) / f64::from(expected) - 1.0).abs();
                assert!(error <= LOSS, "{model}: loss of step {step} is {found}, expected {expected}");
            }
        } else if name.starts_with("grad.") {
            assert!(error <= GRADIENT * largest, "{model}: {name} is off by {error:.1e} of {largest:.1e}");
        } else {
            assert!(error <= WEIGHT, "{model}: {name} is off by {error:.1e}");
        }
    }
}

#[test]
fn gpt2_agrees_with_transformers() {
    check("gpt2");
}

#[test]
fn llama_agrees_with_transformers() {
    check("llama");
}

#[test]
fn neither_cores_nor_accumulation_change_a_bit() {
    let recorded = Recorded::unpack("llama", "bits");
    let whole = run(&recorded.request(1, 1), None).expect("the model runs");
    for (accumulate, cores) in [(1, 2), (2, 1), (2, 3), (4, 2)] {
        let other = run(&recorded.request(accumulate, cores), None).expect("the model runs");
        assert_eq!(whole.weights_hash, other.weights_hash, "{accumulate} microbatches on {cores} cores");
        assert!(whole == other, "{accumulate} microbatches on {cores} cores");
    }
}

#[test]
fn what_is_written_reads_back() {
    let recorded = Recorded::unpack("gpt2", "write");
    let mut request = recorded.request(1, 1);
    request.config.steps = 1;
    let outcome = run(&request, None).expect("the model runs");
    let path = recorded.0.join("out.safetensors");
    write(&path, outcome.tensors.clone()).expect("the file can be written");
    let read = tensors(&path);
    assert_eq!(read.len(), outcome.tensors.len());
    for (name, tensor) in read {
        assert_eq!(*find(&outcome, &name), tensor, "{name}");
    }
}
