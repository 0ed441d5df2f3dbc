//! Charts as scenes of a few marks: lines, areas and texts. The renderer (SVG) knows nothing about the
//! data.

/// Size of a chart in its own units.
pub(super) const WIDTH: f64 = 480.0;
pub(super) const HEIGHT: f64 = 320.0;

/// A colour by its role; the page or the renderer chooses the actual colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ink {
    /// One of the series.
    Series(usize),
    Axis,
    Grid,
    Text,
    Faint,
}

/// The point of a text that its position gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A mark of a scene.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Mark {
    Line { points: Vec<(f64, f64)>, ink: Ink, width: f64, dashed: bool },
    Area { points: Vec<(f64, f64)>, ink: Ink, opacity: f64 },
    Dot { at: (f64, f64), ink: Ink },
    Words { at: (f64, f64), text: String, ink: Ink, size: f64, anchor: Anchor, bold: bool },
}

/// A drawing of fixed size.
#[derive(Clone, PartialEq, Debug)]
pub struct Scene {
    pub(super) title: String,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) marks: Vec<Mark>,
}

impl Scene {
    /// Several scenes of one size in a grid.
    pub fn grid(title: &str, scenes: Vec<Scene>, columns: usize) -> Scene {
        const TOP: f64 = 36.0;
        let rows = scenes.len().div_ceil(columns);
        let mut marks = vec![words((16.0, 24.0), title, Ink::Text, 17.0, Anchor::Start, true)];
        for (i, scene) in scenes.into_iter().enumerate() {
            let shift = ((i % columns) as f64 * WIDTH, TOP + (i / columns) as f64 * HEIGHT);
            marks.extend(scene.marks.into_iter().map(|mark| mark.shifted(shift)));
        }
        let (width, height) = (WIDTH * columns as f64, TOP + HEIGHT * rows as f64);
        Scene { title: title.to_owned(), width, height, marks }
    }
}

impl Mark {
    fn shifted(self, (dx, dy): (f64, f64)) -> Mark {
        let shift = |(x, y): (f64, f64)| (x + dx, y + dy);
        let all = |points: Vec<(f64, f64)>| points.into_iter().map(shift).collect();
        match self {
            Mark::Line { points, ink, width, dashed } => {
                Mark::Line { points: all(points), ink, width, dashed }
            }
            Mark::Area { points, ink, opacity } => Mark::Area { points: all(points), ink, opacity },
            Mark::Dot { at, ink } => Mark::Dot { at: shift(at), ink },
            Mark::Words { at, text, ink, size, anchor, bold } => {
                Mark::Words { at: shift(at), text, ink, size, anchor, bold }
            }
        }
    }
}

fn words(at: (f64, f64), text: &str, ink: Ink, size: f64, anchor: Anchor, bold: bool) -> Mark {
    Mark::Words { at, text: text.to_owned(), ink, size, anchor, bold }
}

/// How a series is drawn.
#[derive(Clone, PartialEq, Debug)]
pub enum Shape {
    /// A line.
    Line,
    /// A dashed line.
    Dashed,
    /// A line with the area below it.
    Filled,
    /// Low and high edge around the points.
    Ribbon(Vec<(f64, f64)>),
    /// Points without a line.
    Dots,
    /// Vertical bars, side by side with those of the other series.
    Bars,
}

/// One series of points.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Number of its colour.
    pub ink: usize,
    /// How its points are drawn.
    pub shape: Shape,
    /// Values of x and y.
    pub points: Vec<(f64, f64)>,
}

/// A chart of series over two linear axes that begin at zero, or over names.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Chart {
    /// Above the chart.
    pub title: String,
    /// Below the horizontal axis.
    pub x: String,
    /// Beside the vertical axis.
    pub y: String,
    /// Names of the positions 0, 1, … on the horizontal axis, in place of numbers.
    pub names: Vec<String>,
    /// Values on the vertical axis are plain numbers, not shares that are shown as percentages.
    pub plain: bool,
    /// Whether x is a share, shown in per cent.
    pub x_percent: bool,
    /// The end of the vertical axis, if it does not follow from the values.
    pub y_top: Option<f64>,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Vertical lines with a label.
    pub flags: Vec<(f64, String)>,
}

const LEFT: f64 = 62.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 50.0;

impl Chart {
    /// Adds a series.
    pub fn with(mut self, name: &str, ink: usize, shape: Shape, points: Vec<(f64, f64)>) -> Chart {
        self.series.push(Series { name: name.to_owned(), ink, shape, points });
        self
    }

    /// Lays the chart out as marks.
    pub fn scene(&self) -> Scene {
        let legend = self.legend();
        let top = 62.0 + 18.0 * legend.1.saturating_sub(1) as f64 + 14.0 * self.flags.len() as f64;
        let points = || self.series.iter().flat_map(|s| s.points.iter());
        let edges = self.series.iter().filter_map(|s| match &s.shape {
            Shape::Ribbon(edges) => Some(edges.iter().map(|e| e.1).fold(0.0, f64::max)),
            _ => None,
        });
        let named = !self.names.is_empty();
        // Names are centred in equal parts.
        let shift = if named { 0.5 } else { 0.0 };
        let x_max = match named {
            true => self.names.len() as f64,
            false => points().map(|p| p.0).fold(0.0, f64::max).max(1e-12),
        };
        let highest = points().map(|p| p.1).chain(edges).fold(0.0, f64::max);
        let y_max = self.y_top.unwrap_or(highest * 1.05).max(1e-12);
        let place = |(x, y): (f64, f64)| {
            let across = LEFT + (x + shift) / x_max * (WIDTH - LEFT - RIGHT);
            (across, HEIGHT - BOTTOM - (y / y_max).clamp(0.0, 1.0) * (HEIGHT - BOTTOM - top))
        };
        let mut marks = vec![words((16.0, 24.0), &self.title, Ink::Text, 15.0, Anchor::Start, true)];
        marks.extend(legend.0);
        for value in ticks(y_max) {
            let y = place((0.0, value)).1;
            marks.push(line(vec![(LEFT, y), (WIDTH - RIGHT, y)], Ink::Grid, 1.0, false));
            let label = if self.plain { plain(value) } else { percent(value, y_max) };
            marks.push(words((LEFT - 8.0, y + 4.0), &label, Ink::Faint, 12.0, Anchor::End, false));
        }
        for (value, label) in self.x_labels(x_max) {
            let x = place((value, 0.0)).0;
            marks.push(words((x, HEIGHT - BOTTOM + 18.0), &label, Ink::Faint, 12.0, Anchor::Middle, false));
        }
        let floor = place((0.0, 0.0)).1;
        marks.push(line(vec![(LEFT, floor), (WIDTH - RIGHT, floor)], Ink::Axis, 1.2, false));
        // Each label has a row of its own above the curves, so that none covers anything.
        for (row, (at, text)) in self.flags.iter().enumerate().filter(|(_, flag)| flag.0 <= x_max) {
            let (x, y) = place((*at, y_max));
            let y = y - 14.0 * row as f64;
            marks.push(line(vec![(x, y - 12.0), (x, HEIGHT - BOTTOM)], Ink::Faint, 1.2, true));
            let (dx, anchor) = if x > WIDTH * 0.6 { (-5.0, Anchor::End) } else { (5.0, Anchor::Start) };
            marks.push(words((x + dx, y - 4.0), text, Ink::Faint, 12.0, anchor, false));
        }
        self.curves(&place, &mut marks);
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        marks.push(words((middle, HEIGHT - 12.0), &self.x, Ink::Faint, 12.0, Anchor::Middle, false));
        Scene {
            title: format!("{}: {} against {}", self.title, self.y, self.x),
            width: WIDTH,
            height: HEIGHT,
            marks,
        }
    }

    fn curves(&self, place: &impl Fn((f64, f64)) -> (f64, f64), marks: &mut Vec<Mark>) {
        let bars = self.series.iter().filter(|series| series.shape == Shape::Bars).count();
        let mut bar = 0;
        for series in &self.series {
            if series.shape == Shape::Bars {
                upright(series, (bar, bars), place, marks);
                bar += 1;
            } else {
                draw(series, place, marks);
            }
        }
    }

    fn x_labels(&self, x_max: f64) -> Vec<(f64, String)> {
        if !self.names.is_empty() {
            return self.names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect();
        }
        let label = |value| if self.x_percent { percent(value, x_max) } else { plain(value) };
        ticks(x_max).into_iter().map(|value| (value, label(value))).collect()
    }

    /// The legend under the title, and its number of rows.
    fn legend(&self) -> (Vec<Mark>, usize) {
        let (mut marks, mut x, mut row) = (Vec::new(), 16.0, 0);
        for series in &self.series {
            let width = 30.0 + series.name.chars().count() as f64 * 7.2;
            if x + width > WIDTH - 4.0 && x > 16.0 {
                (x, row) = (16.0, row + 1);
            }
            let (ink, y) = (Ink::Series(series.ink), 44.0 + 18.0 * row as f64);
            let across = vec![(x, y - 4.0), (x + 16.0, y - 4.0)];
            match series.shape {
                Shape::Ribbon(_) => {
                    let corners = vec![(x, y - 9.0), (x + 16.0, y - 9.0), (x + 16.0, y + 1.0), (x, y + 1.0)];
                    marks.push(Mark::Area { points: corners, ink, opacity: 0.25 });
                    marks.push(line(across, ink, 2.0, false));
                }
                Shape::Dots => marks.push(Mark::Dot { at: (x + 8.0, y - 4.0), ink }),
                Shape::Bars => {
                    let corners = vec![(x, y - 9.0), (x + 16.0, y - 9.0), (x + 16.0, y + 1.0), (x, y + 1.0)];
                    marks.push(Mark::Area { points: corners, ink, opacity: 0.85 });
                }
                _ => marks.push(line(across, ink, 2.5, series.shape == Shape::Dashed)),
            }
            marks.push(words((x + 21.0, y), &series.name, Ink::Text, 12.0, Anchor::Start, false));
            x += width;
        }
        (marks, row + 1)
    }
}

fn line(points: Vec<(f64, f64)>, ink: Ink, width: f64, dashed: bool) -> Mark {
    Mark::Line { points, ink, width, dashed }
}

fn draw(series: &Series, place: &impl Fn((f64, f64)) -> (f64, f64), marks: &mut Vec<Mark>) {
    let ink = Ink::Series(series.ink);
    let points: Vec<(f64, f64)> = series.points.iter().map(|p| place(*p)).collect();
    let (Some(first), Some(last)) = (points.first().copied(), points.last().copied()) else { return };
    match &series.shape {
        Shape::Bars => {}
        Shape::Dots => marks.extend(points.into_iter().map(|at| Mark::Dot { at, ink })),
        Shape::Line | Shape::Dashed => {
            marks.push(line(points, ink, 2.2, series.shape == Shape::Dashed));
        }
        Shape::Filled => {
            let floor = place((0.0, 0.0)).1;
            let mut around = points.clone();
            around.extend([(last.0, floor), (first.0, floor)]);
            marks.push(Mark::Area { points: around, ink, opacity: 0.15 });
            marks.push(line(points, ink, 2.2, false));
        }
        Shape::Ribbon(edges) => {
            let edge = |pick: fn(&(f64, f64)) -> f64| {
                series.points.iter().zip(edges).map(move |(p, e)| (p.0, pick(e))).collect::<Vec<_>>()
            };
            let mut around: Vec<(f64, f64)> = edge(|e| e.0).into_iter().map(place).collect();
            around.extend(edge(|e| e.1).into_iter().rev().map(place));
            marks.push(Mark::Area { points: around, ink, opacity: 0.25 });
            marks.push(line(points.clone(), ink, 1.6, false));
            marks.extend(points.into_iter().map(|at| Mark::Dot { at, ink }));
        }
    }
}

/// Bars of one of several series, side by side.
fn upright(
    series: &Series,
    (one, of): (usize, usize),
    place: &impl Fn((f64, f64)) -> (f64, f64),
    marks: &mut Vec<Mark>,
) {
    let width = 0.8 / of as f64;
    for &(x, y) in &series.points {
        let left = x - 0.4 + width * one as f64;
        let right = left + width * 0.9;
        let points = [(left, 0.0), (left, y), (right, y), (right, 0.0)].map(place).to_vec();
        marks.push(Mark::Area { points, ink: Ink::Series(series.ink), opacity: 0.85 });
    }
}

/// Four to six round values from 0 to `max`.
fn ticks(max: f64) -> Vec<f64> {
    let rough = max / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= rough * 0.999).unwrap_or(rough);
    let count = (max / step + 1e-9) as usize;
    (0..=count).map(|i| i as f64 * step).collect()
}

fn percent(value: f64, max: f64) -> String {
    let digits = if max >= 0.05 { 0 } else { (-(max * 20.0).log10()).ceil().clamp(1.0, 9.0) as usize };
    match value {
        0.0 => "0 %".into(),
        v if max < 1e-5 => format!("{:.0e} %", v * 100.0),
        v => format!("{:.digits$} %", v * 100.0),
    }
}

fn plain(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", short(v / 1e6)),
        v if v >= 1e4 => format!("{}k", short(v / 1e3)),
        v => short(v),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (max, expected) in [(500.0, 100.0), (1.0, 0.2), (0.033, 0.01), (7.0, 2.0), (12.0, 5.0)] {
            let found = ticks(max);
            assert!((found[1] - expected).abs() < 1e-12, "{max}: {found:?}");
            assert!((3..=7).contains(&found.len()), "{max}: {found:?}");
        }
        assert_eq!([percent(0.2, 1.0), percent(0.001, 0.004), plain(20_000.0)], ["20 %", "0.10 %", "20k"]);
    }

    #[test]
    fn all_marks_are_inside_the_chart() {
        let chart = Chart { title: "t".into(), flags: vec![(3.0, "here".into())], ..Chart::default() }
            .with("a", 0, Shape::Filled, vec![(0.0, 0.0), (10.0, 2.0)])
            .with("b", 1, Shape::Ribbon(vec![(0.1, 0.2), (1.0, 3.0)]), vec![(0.0, 0.1), (10.0, 2.0)]);
        let names = ["one", "two", "three"].map(str::to_owned).to_vec();
        let bars = Chart { names, plain: true, ..Chart::default() }
            .with("a", 0, Shape::Bars, vec![(0.0, 3.0), (2.0, 9.0)])
            .with("b", 1, Shape::Bars, vec![(1.0, 1e9)])
            .with("c", 2, Shape::Dots, vec![(1.0, 4.0)]);
        for scene in [chart.scene(), bars.scene()] {
            let shapes = scene.marks.iter().filter_map(|mark| match mark {
                Mark::Line { points, .. } | Mark::Area { points, .. } => Some(points),
                Mark::Dot { .. } | Mark::Words { .. } => None,
            });
            let shapes: Vec<_> = shapes.collect();
            assert!(shapes.len() > 3, "{scene:?}");
            for points in shapes {
                assert!(points.iter().all(|(x, y)| (0.0..=WIDTH).contains(x) && (0.0..=HEIGHT).contains(y)));
            }
        }
    }
}
