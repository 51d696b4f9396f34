//! Charts as SVG. They are drawn here, so that pages need no script for them.

use std::fmt::Write as _;

use super::html::Html;
use super::sample::{AttemptRates, OUTCOMES};

const WIDTH: f64 = 1_000.0;
const HEIGHT: f64 = 100.0;

/// A round number at or above the largest value, for the top of the axis.
pub(super) fn top(largest: f64) -> f64 {
    if largest <= 0.0 {
        return 1.0;
    }
    let scale = 10_f64.powf(largest.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * scale).find(|top| *top >= largest).unwrap_or(largest)
}

/// The largest sum of the series.
pub(super) fn peak(rates: &[[f64; OUTCOMES.len()]]) -> f64 {
    rates.iter().map(|rates| rates.iter().sum::<f64>()).fold(0.0, f64::max)
}

/// Areas on top of each other, one for each outcome. `columns` is the number of samples of a full chart: a young server's chart
/// grows from the right.
pub(super) fn stacked(rates: &[[f64; OUTCOMES.len()]], columns: usize, label: &str) -> Html {
    let top = top(peak(rates));
    let x =
        |at: usize| WIDTH - (rates.len() - 1 - at) as f64 * WIDTH / columns.saturating_sub(1).max(1) as f64;
    let y = |value: f64| HEIGHT - value / top * HEIGHT;
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}\">",
        super::html::escape(label)
    );
    svg.push_str("<path class=\"grid\" d=\"M0 25H1000M0 50H1000M0 75H1000\"/>");
    let mut below = vec![0.0; rates.len()];
    for series in 0..OUTCOMES.len() {
        let above: Vec<f64> = rates.iter().zip(&below).map(|(rates, below)| below + rates[series]).collect();
        if rates.len() > 1 && above.iter().zip(&below).any(|(above, below)| above > below) {
            let _ = write!(svg, "<path class=\"area area-{}\" d=\"", series + 1);
            for (at, value) in above.iter().enumerate() {
                let command = if at == 0 { 'M' } else { 'L' };
                let _ = write!(svg, "{command}{:.0} {:.1}", x(at), y(*value));
            }
            for (at, value) in below.iter().enumerate().rev() {
                let _ = write!(svg, "L{:.0} {:.1}", x(at), y(*value));
            }
            svg.push_str("Z\"/>");
        }
        below = above;
    }
    svg.push_str("</svg>");
    Html::trusted(svg)
}

/// Two lines without axes: delivered, and failed with dashes.
pub(super) fn sparkline(rates: &[AttemptRates], columns: usize, label: &str) -> Html {
    let top = top(rates.iter().map(|rate| rate.delivered.max(rate.failed)).fold(0.0, f64::max));
    let line = |class: &str, of: fn(&AttemptRates) -> f64| {
        let mut path = format!("<path class=\"{class}\" d=\"");
        for (at, rate) in rates.iter().enumerate() {
            let x = WIDTH - (rates.len() - 1 - at) as f64 * WIDTH / columns.saturating_sub(1).max(1) as f64;
            let command = if at == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{x:.0} {:.1}", HEIGHT - 4.0 - of(rate) / top * (HEIGHT - 8.0));
        }
        path.push_str("\"/>");
        path
    };
    let mut svg = format!(
        "<svg class=\"spark\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}\">",
        super::html::escape(label)
    );
    if rates.len() > 1 {
        svg.push_str(&line("delivered", |rate| rate.delivered));
        if rates.iter().any(|rate| rate.failed > 0.0) {
            svg.push_str(&line("failed", |rate| rate.failed));
        }
    }
    svg.push_str("</svg>");
    Html::trusted(svg)
}

/// Parts of a whole, side by side, each with the class of its rectangle.
pub(super) fn bar(parts: &[(&str, u64)], whole: u64, label: &str) -> Html {
    let mut svg = format!(
        "<svg class=\"bar\" viewBox=\"0 0 {WIDTH} 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        super::html::escape(label)
    );
    let mut x = 0.0;
    for (class, count) in parts.iter().filter(|(_, count)| *count > 0) {
        let width = *count as f64 / whole.max(1) as f64 * WIDTH;
        let _ =
            write!(svg, "<rect class=\"{class}\" x=\"{x:.1}\" y=\"0\" width=\"{width:.1}\" height=\"10\"/>");
        x += width;
    }
    svg.push_str("</svg>");
    Html::trusted(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_number() {
        for (largest, expected) in [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (17.0, 20.0), (501.0, 1_000.0)] {
            assert!((top(largest) - expected).abs() < 1e-9, "{largest}: {}", top(largest));
        }
    }

    #[test]
    fn charts_have_no_broken_numbers() {
        for rates in
            [vec![], vec![[1.0, 0.0, 0.0, 0.0]], vec![[0.0; 4], [3.0, 1.0, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0]]]
        {
            let svg = stacked(&rates, 200, "rates").to_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(stacked(&[[0.0; 4], [1.0; 4]], 2, "").to_string().contains("area-4"));
        assert!(!sparkline(&[AttemptRates::default()], 2, "").to_string().contains("NaN"));
        assert!(bar(&[("done", 1)], 0, "").to_string().contains("<rect"));
        assert!(!bar(&[("done", 0), ("failed", 0)], 6, "").to_string().contains("<rect"), "an empty bar");
    }
}
