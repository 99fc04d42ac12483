//! A curve drawn with braille characters, each two dots wide and four high.

/// Dots of one character: `[column][row]`.
const DOTS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// A drawing area of `width` by `height` characters.
struct Canvas {
    width: usize,
    height: usize,
    cells: Vec<u8>,
}

impl Canvas {
    fn dot(&mut self, x: usize, y: usize) {
        self.cells[y / 4 * self.width + x / 2] |= DOTS[x % 2][y % 4];
    }

    fn rows(&self) -> impl Iterator<Item = String> + '_ {
        let character = |&cell: &u8| char::from_u32(0x2800 + u32::from(cell)).unwrap_or(' ');
        self.cells.chunks(self.width).map(move |row| row.iter().map(character).collect())
    }
}

/// The curve of `values` over `width` by `height` characters, with the highest and lowest value at its left; `floor` is
/// drawn as a dotted line.
pub fn curve(values: &[f32], floor: Option<f64>, width: usize, height: usize) -> Vec<String> {
    let columns = spread(values, 2 * width);
    let lowest = columns.iter().copied().chain(floor).fold(f64::INFINITY, f64::min);
    let highest = columns.iter().copied().chain(floor).fold(f64::NEG_INFINITY, f64::max);
    let span = (highest - lowest).max(f64::MIN_POSITIVE);
    let last = 4 * height - 1;
    let row = |value: f64| ((highest - value) / span * last as f64).round() as usize;
    let mut canvas = Canvas { width, height, cells: vec![0; width * height] };
    if let Some(floor) = floor {
        (0..2 * width).step_by(4).for_each(|x| canvas.dot(x, row(floor)));
    }
    let mut before = columns.first().map_or(0, |&value| row(value));
    for (x, &value) in columns.iter().enumerate() {
        let here = row(value);
        (before.min(here)..=before.max(here)).for_each(|y| canvas.dot(x, y));
        before = here;
    }
    let label = |index: usize| match index {
        0 => format!("{highest:7.3}"),
        index if index + 1 == canvas.height => format!("{lowest:7.3}"),
        _ => " ".repeat(7),
    };
    canvas.rows().enumerate().map(|(index, row)| format!("{} │{row}", label(index))).collect()
}

/// One value a column: means of equal stretches, or points between values where these are few.
fn spread(values: &[f32], columns: usize) -> Vec<f64> {
    let at = |index: usize| f64::from(values[index]);
    let n = values.len();
    let mean = |column: usize| {
        let range = column * n / columns..(column + 1) * n / columns;
        let count = range.len() as f64;
        range.map(at).sum::<f64>() / count
    };
    let between = |column: usize| {
        let place = (column * (n - 1)) as f64 / (columns - 1) as f64;
        let (index, part) = (place as usize, place.fract());
        at(index) * (1.0 - part) + at((index + 1).min(n - 1)) * part
    };
    match n {
        0 => Vec::new(),
        n if n < columns => (0..columns).map(between).collect(),
        _ => (0..columns).map(mean).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_line_is_drawn_from_top_left_to_bottom_right() {
        assert_eq!(curve(&[3.0, 2.0, 1.0, 0.0], None, 2, 1), ["  3.000 │⠙⢦"]);
        assert_eq!(curve(&[1.0, 0.0], Some(0.0), 4, 1).len(), 1);
    }

    #[test]
    fn odd_inputs_do_not_panic() {
        for values in [&[][..], &[1.0], &[2.0, 2.0], &[1.0; 1000]] {
            assert_eq!(curve(values, Some(0.5), 10, 3).len(), 3);
        }
    }
}
