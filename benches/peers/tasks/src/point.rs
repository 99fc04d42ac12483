//! One measured point, as the command line that every system takes.

use std::str::FromStr;

use crate::{Pattern, PatternShape};

/// A graph and how to run it.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The graph.
    pub shape: PatternShape,
    /// Threads that run tasks.
    pub workers: usize,
    /// Iterations of each body.
    pub grain: u64,
    /// How often the graph is timed.
    pub repeat: usize,
}

impl Point {
    /// The point as options.
    pub fn to_args(self) -> Vec<String> {
        let PatternShape { pattern, width, steps } = self.shape;
        let Self { workers, grain, repeat, .. } = self;
        let line = format!(
            "--pattern {pattern} --width {width} --steps {steps} --workers {workers} --grain {grain} --repeat {repeat}"
        );
        line.split(' ').map(String::from).collect()
    }

    /// Reads what [`Self::to_args`] writes; the message names what is missing or wrong.
    pub fn from_args(args: &[String]) -> Result<Self, String> {
        let pattern = option::<Pattern>(args, "--pattern")?;
        let (width, steps) = (positive(args, "--width")?, positive(args, "--steps")?);
        let (workers, repeat) = (positive(args, "--workers")?, positive(args, "--repeat")?);
        Ok(Self {
            shape: PatternShape { pattern, width, steps },
            workers,
            grain: option(args, "--grain")?,
            repeat,
        })
    }

    /// The line of JSON with which a system answers.
    pub fn answer(&self, system: &str, seconds: f64) -> String {
        format!(r#"{{"system":"{system}","seconds":{seconds:e},"graph":"{:016x}"}}"#, self.shape.digest())
    }
}

fn option<T: FromStr<Err: ToString>>(args: &[String], name: &str) -> Result<T, String> {
    let position = args.iter().position(|arg| arg == name).ok_or_else(|| format!("{name} is missing"))?;
    let text = args.get(position + 1).ok_or_else(|| format!("{name} needs a value"))?;
    text.parse().map_err(|error: T::Err| format!("{name} {text}: {}", error.to_string()))
}

fn positive(args: &[String], name: &str) -> Result<usize, String> {
    match option(args, name)? {
        0 => Err(format!("{name} is 0; it must be at least 1")),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(String::from).collect()
    }

    #[test]
    fn options_are_read_back() {
        let args = words("--pattern fft --width 4 --steps 10 --workers 2 --grain 0 --repeat 3");
        assert_eq!(Point::from_args(&args).unwrap().to_args(), args);
    }

    #[test]
    fn errors_name_the_option() {
        let error = |line| Point::from_args(&words(line)).unwrap_err();
        assert_eq!(error("--pattern fft --width"), "--width needs a value");
        assert_eq!(error("--pattern fft --width 0 --steps 1"), "--width is 0; it must be at least 1");
        assert_eq!(error("--width 1"), "--pattern is missing");
        assert!(error("--pattern fft --width x").starts_with("--width x: invalid digit"));
    }
}
