//! Scenes as SVG, in colours that follow the reader's light or dark preference.

use super::chart::{Anchor, Ink, Mark, Scene};
use std::fmt::Write;

/// The colours, for a page or for a single SVG file.
pub const STYLE: &str = "\
:root{--s0:#2563eb;--s1:#d97706;--s2:#0d9488;--s3:#e11d48;--s4:#7c3aed;--text:#1e293b;--faint:#64748b;--grid:#e2e8f0;\
--axis:#94a3b8;--card:#ffffff;--page:#f1f5f9;color-scheme:light dark}\
@media(prefers-color-scheme:dark){:root{--s0:#60a5fa;--s1:#fbbf24;--s2:#2dd4bf;--s3:#fb7185;--s4:#a78bfa;--text:#e2e8f0;\
--faint:#94a3b8;--grid:#293548;--axis:#64748b;--card:#182234;--page:#0f172a}}";

/// The scene inside a page that defines the colours.
pub fn inline(scene: &Scene) -> String {
    let mut out = String::new();
    let (w, h, title) = (scene.width, scene.height, escape(&scene.title));
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{title}\" \
         font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif\"><title>{title}</title>"
    );
    for mark in &scene.marks {
        draw(mark, &mut out);
    }
    out.push_str("</svg>");
    out
}

/// The scene as an SVG file.
pub fn alone(scene: &Scene) -> String {
    let body = inline(scene);
    let (head, rest) = body.split_once('>').expect("an element was written");
    let (w, h) = (scene.width, scene.height);
    format!(
        "{head} width=\"{w}\" height=\"{h}\"><style>{STYLE}</style>\
         <rect width=\"{w}\" height=\"{h}\" fill=\"var(--card)\"/>{rest}\n"
    )
}

fn draw(mark: &Mark, out: &mut String) {
    let path = |points: &[(f64, f64)]| {
        let mut d = String::new();
        for (x, y) in points {
            let _ = write!(d, "{}{x:.1} {y:.1}", if d.is_empty() { "M" } else { "L" });
        }
        d
    };
    let _ = match mark {
        Mark::Line { points, ink, width, dashed } => write!(
            out,
            "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{}/>",
            path(points),
            colour(*ink),
            if *dashed { " stroke-dasharray=\"5 4\"" } else { "" }
        ),
        Mark::Area { points, ink, opacity } => {
            write!(out, "<path d=\"{}Z\" fill=\"{}\" opacity=\"{opacity}\"/>", path(points), colour(*ink))
        }
        Mark::Dot { at: (x, y), ink } => {
            write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\" fill=\"{}\"/>", colour(*ink))
        }
        Mark::Words { at: (x, y), text, ink, size, anchor, bold } => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let weight = if *bold { " font-weight=\"600\"" } else { "" };
            let (colour, text) = (colour(*ink), escape(text));
            write!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{colour}\"{weight}>{text}</text>"
            )
        }
    };
}

fn colour(ink: Ink) -> String {
    match ink {
        Ink::Series(i) => format!("var(--s{})", i % 5),
        Ink::Axis => "var(--axis)".into(),
        Ink::Grid => "var(--grid)".into(),
        Ink::Text => "var(--text)".into(),
        Ink::Faint => "var(--faint)".into(),
    }
}

/// Escapes text for markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
