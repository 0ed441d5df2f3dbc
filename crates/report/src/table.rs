//! Aligned columns.

use std::fmt;

/// Writes rows in columns, two spaces apart; columns with `r` in `align` are right-aligned, the others
/// left-aligned.
pub fn table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    align: &str,
    indent: usize,
    rows: &[[String; N]],
) -> fmt::Result {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for (number, row) in rows.iter().enumerate() {
        let mut line = " ".repeat(indent);
        for ((cell, width), side) in row.iter().zip(widths).zip(align.chars()) {
            match side {
                'r' => line.push_str(&format!("{cell:>width$}  ")),
                _ => line.push_str(&format!("{cell:<width$}  ")),
            }
        }
        let end = if number + 1 == rows.len() { "" } else { "\n" };
        write!(f, "{}{end}", line.trim_end())?;
    }
    Ok(())
}
