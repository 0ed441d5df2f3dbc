//! Renders scenes as PNG: two pixels per unit, antialiased edges, a stroke font.

use super::chart::{Anchor, Ink, Mark, Scene};
use super::strokes;

const SCALE: f64 = 2.0;
type Colour = [f64; 3];

/// A white canvas.
struct Sheet {
    width: usize,
    height: usize,
    pixels: Vec<Colour>,
}

/// Renders the scene and encodes it.
pub(crate) fn render(scene: &Scene) -> Vec<u8> {
    let (width, height) = ((scene.width * SCALE) as usize, (scene.height * SCALE) as usize);
    let mut sheet = Sheet { width, height, pixels: vec![[255.0; 3]; width * height] };
    for mark in &scene.marks {
        sheet.draw(mark);
    }
    sheet.pack()
}

fn colour(ink: Ink) -> Colour {
    let hex: u32 = match ink {
        Ink::Series(i) => [0x0025_63eb, 0x00d9_7706, 0x000d_9488, 0x00e1_1d48, 0x007c_3aed][i % 5],
        Ink::Axis => 0x0094_a3b8,
        Ink::Grid => 0x00e2_e8f0,
        Ink::Text => 0x001e_293b,
        Ink::Faint => 0x0064_748b,
    };
    [16, 8, 0].map(|shift| f64::from(hex >> shift & 0xff))
}

impl Sheet {
    fn draw(&mut self, mark: &Mark) {
        let scaled = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            points.iter().map(|(x, y)| (x * SCALE, y * SCALE)).collect()
        };
        match mark {
            Mark::Line { points, ink, width, dashed } => {
                let points = if *dashed { dashes(&scaled(points)) } else { vec![scaled(points)] };
                for run in points {
                    self.stroke(&run, width * SCALE / 2.0, colour(*ink));
                }
            }
            Mark::Area { points, ink, opacity } => self.fill(&scaled(points), colour(*ink), *opacity),
            Mark::Dot { at, ink } => {
                let at = (at.0 * SCALE, at.1 * SCALE);
                self.stroke(&[at, at], 3.4 * SCALE, colour(*ink));
            }
            Mark::Words { at, text, ink, size, anchor, bold } => {
                let grid = size * SCALE * 0.72 / 6.0;
                // Letters are a little narrower than their grid is high.
                let across = grid * 0.84;
                let length: f64 = text.chars().map(strokes::advance).sum::<f64>() * across;
                let mut x = at.0 * SCALE
                    - match anchor {
                        Anchor::Start => 0.0,
                        Anchor::Middle => length / 2.0,
                        Anchor::End => length,
                    };
                let pen = if *bold { 1.25 } else { 0.85 };
                for letter in text.chars() {
                    for line in strokes::points(letter) {
                        let y = at.1 * SCALE - 6.0 * grid;
                        let run: Vec<(f64, f64)> =
                            line.iter().map(|p| (x + p.0 * across, y + p.1 * grid)).collect();
                        self.stroke(&run, pen, colour(*ink));
                    }
                    x += strokes::advance(letter) * across;
                }
            }
        }
    }

    fn blend(&mut self, x: usize, y: usize, colour: Colour, share: f64) {
        let pixel = &mut self.pixels[y * self.width + x];
        for (to, from) in pixel.iter_mut().zip(colour) {
            *to += (from - *to) * share;
        }
    }

    /// Draws a line of half-width `pen` with round joints; each pixel is painted once, by its distance.
    fn stroke(&mut self, points: &[(f64, f64)], pen: f64, colour: Colour) {
        let reach = |values: &mut dyn Iterator<Item = f64>, most: usize| {
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
            ((low - pen - 1.0).max(0.0) as usize, ((high + pen + 2.0).max(0.0) as usize).min(most))
        };
        let mut nearest = std::collections::HashMap::new();
        for pair in points.windows(2) {
            let ((ax, ay), (bx, by)) = (pair[0], pair[1]);
            let (left, right) = reach(&mut [ax, bx].into_iter(), self.width);
            let (top, bottom) = reach(&mut [ay, by].into_iter(), self.height);
            let (dx, dy) = (bx - ax, by - ay);
            let length = dx * dx + dy * dy;
            for y in top..bottom {
                for x in left..right {
                    let (px, py) = (x as f64 + 0.5 - ax, y as f64 + 0.5 - ay);
                    let along =
                        if length > 0.0 { ((px * dx + py * dy) / length).clamp(0.0, 1.0) } else { 0.0 };
                    let distance = (px - along * dx).hypot(py - along * dy);
                    let near: &mut f64 = nearest.entry((x, y)).or_insert(f64::MAX);
                    *near = near.min(distance);
                }
            }
        }
        for ((x, y), distance) in nearest {
            let share = (pen + 0.5 - distance).clamp(0.0, 1.0);
            if share > 0.0 {
                self.blend(x, y, colour, share);
            }
        }
    }

    /// Fills a polygon, row by row at the middle of the pixels.
    fn fill(&mut self, points: &[(f64, f64)], colour: Colour, opacity: f64) {
        for y in 0..self.height {
            let middle = y as f64 + 0.5;
            let mut crossings: Vec<f64> = (0..points.len())
                .map(|i| (points[i], points[(i + 1) % points.len()]))
                .filter(|(a, b)| (a.1 <= middle) != (b.1 <= middle))
                .map(|(a, b)| a.0 + (middle - a.1) / (b.1 - a.1) * (b.0 - a.0))
                .collect();
            crossings.sort_by(f64::total_cmp);
            for span in crossings.chunks_exact(2) {
                let end = (span[1].max(0.0).round() as usize).min(self.width);
                for x in span[0].max(0.0).round() as usize..end {
                    self.blend(x, y, colour, opacity);
                }
            }
        }
    }

    fn pack(&self) -> Vec<u8> {
        let mut raw = Vec::with_capacity(self.height * (1 + 3 * self.width));
        let mut above = vec![0u8; 3 * self.width];
        for row in self.pixels.chunks_exact(self.width) {
            let bytes: Vec<u8> = row.iter().flatten().map(|c| c.round().clamp(0.0, 255.0) as u8).collect();
            // PNG filter 2: each row is the difference from the row above, so most bytes are 0.
            raw.push(2);
            raw.extend(bytes.iter().zip(&above).map(|(a, b)| a.wrapping_sub(*b)));
            above = bytes;
        }
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut head = Vec::new();
        head.extend((self.width as u32).to_be_bytes());
        head.extend((self.height as u32).to_be_bytes());
        head.extend([8, 2, 0, 0, 0]);
        chunk(&mut out, *b"IHDR", &head);
        chunk(&mut out, *b"IDAT", &zlib(&raw));
        chunk(&mut out, *b"IEND", &[]);
        out
    }
}

fn dashes(points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
    const ON: f64 = 5.0 * SCALE;
    const PERIOD: f64 = 9.0 * SCALE;
    let (mut runs, mut walked) = (Vec::new(), 0.0);
    for pair in points.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        let length = (b.0 - a.0).hypot(b.1 - a.1);
        let at = |t: f64| (a.0 + (b.0 - a.0) * t / length, a.1 + (b.1 - a.1) * t / length);
        let mut t = 0.0;
        while t < length {
            let phase = (walked + t) % PERIOD;
            let step = (if phase < ON { ON } else { PERIOD } - phase).max(1e-6).min(length - t);
            if phase < ON {
                runs.push(vec![at(t), at(t + step)]);
            }
            t += step;
        }
        walked += length;
    }
    runs
}

fn chunk(out: &mut Vec<u8>, kind: [u8; 4], body: &[u8]) {
    out.extend((body.len() as u32).to_be_bytes());
    let start = out.len();
    out.extend(kind);
    out.extend(body);
    let sum = crc(&out[start..]);
    out.extend(sum.to_be_bytes());
}

fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 })
    };
    !bytes.iter().fold(!0, step)
}

/// A zlib stream of one block with fixed codes: literals, and runs of the last byte.
fn zlib(raw: &[u8]) -> Vec<u8> {
    let mut bits = Bits { out: vec![0x78, 0x01], held: 0, count: 0 };
    bits.put(0b011, 3);
    let mut i = 0;
    while i < raw.len() {
        let run = raw[i..].iter().take_while(|b| **b == raw[i]).count();
        bits.literal(u32::from(raw[i]));
        i += 1;
        // A single code encodes a run of at most 258.
        for _ in 0..(run - 1) / 258 {
            bits.literal(285);
            bits.put(0, 5);
            i += 258;
        }
    }
    bits.literal(256);
    bits.put(0, 7);
    let (mut a, mut b) = (1u32, 0u32);
    for byte in raw {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    let mut out = bits.out;
    out.extend((b << 16 | a).to_be_bytes());
    out
}

struct Bits {
    out: Vec<u8>,
    held: u32,
    count: u32,
}

impl Bits {
    /// Writes low bits first.
    fn put(&mut self, value: u32, width: u32) {
        self.held |= value << self.count;
        self.count += width;
        while self.count >= 8 {
            self.out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    /// Writes one symbol of the fixed literal and length code; codes go high bit first.
    fn literal(&mut self, symbol: u32) {
        let (code, width) = match symbol {
            0..=143 => (0x30 + symbol, 8),
            144..=255 => (0x190 + symbol - 144, 9),
            256..=279 => (symbol - 256, 7),
            _ => (0xc0 + symbol - 280, 8),
        };
        self.put(code.reverse_bits() >> (32 - width), width);
    }
}
