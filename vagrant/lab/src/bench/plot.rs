//! Plots, as SVG.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use zvolt_bench::sample::Side;

use super::figures::Distribution;
use super::report::{Report, name_of};

const SIZE: (u32, u32) = (900, 420);

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("draw a plot: {error}")
}

/// All plots: file name and SVG. Child processes take so long that they get one of their own.
pub(super) fn all(report: &Report) -> Result<Vec<(String, String)>> {
    let mut plots = Vec::new();
    for (case, what) in [
        ("ext4", "attach"),
        ("xfs", "attach"),
        ("ext4", "detach"),
        ("local", "attach"),
    ] {
        let all: Vec<&Distribution> = report
            .distributions
            .iter()
            .filter(|d| d.case == case && d.what == what)
            .collect();
        let near: Vec<&Distribution> = all
            .iter()
            .copied()
            .filter(|d| d.side != Side::Baseline)
            .collect();
        let title = format!("{case} {what}: medians by step (dots: p90 and p99)");
        if !near.is_empty() {
            plots.push((format!("{case}-{what}.svg"), stacked(&title, &near)?));
        }
        if all.len() > near.len() {
            let name = format!("{case}-{what}-child-processes.svg");
            plots.push((name, stacked(&title, &all)?));
        }
    }
    Ok(plots)
}

/// One bar a side, of its steps one after the other; what no step accounts for is grey.
fn stacked(title: &str, sides: &[&Distribution]) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&root, title, sides)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn draw(
    root: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    sides: &[&Distribution],
) -> Result<()> {
    root.fill(&WHITE).map_err(failed)?;
    let widest = sides.iter().map(|d| d.p99.max(d.p50)).fold(1.0, f64::max) * 1.02;
    let rows = i32::try_from(sides.len())?;
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(110)
        .build_cartesian_2d(0.0..widest, (0..rows - 1).into_segmented())
        .map_err(failed)?;
    let label = |row: &SegmentValue<i32>| match row {
        SegmentValue::CenterOf(row) => usize::try_from(*row)
            .ok()
            .and_then(|row| sides.get(row))
            .map(|d| name_of(d.side).to_owned())
            .unwrap_or_default(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_label_formatter(&label)
        .x_desc("milliseconds")
        .draw()
        .map_err(failed)?;
    let mut legend: Vec<String> = Vec::new();
    for (row, side) in (0..rows).zip(sides) {
        let low = SegmentValue::Exact(row);
        let high = match row + 1 == rows {
            true => SegmentValue::Last,
            false => SegmentValue::Exact(row + 1),
        };
        let mut from = 0.0;
        for (name, ms) in pieces(side) {
            let short = name.rsplit(' ').next().unwrap_or(&name).to_owned();
            let short = if side.side == Side::Baseline {
                name
            } else {
                short
            };
            let known = legend.iter().position(|known| *known == short);
            let at = known.unwrap_or(legend.len());
            if known.is_none() {
                legend.push(short.clone());
            }
            let colour = colour(at, &short);
            let mut bar = Rectangle::new(
                [(from, low.clone()), (from + ms, high.clone())],
                colour.filled(),
            );
            bar.set_margin(14, 14, 0, 0);
            let drawn = chart.draw_series([bar]).map_err(failed)?;
            if known.is_none() {
                drawn.label(short).legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                });
            }
            from += ms;
        }
        for quantile in [side.p90, side.p99] {
            let middle = SegmentValue::CenterOf(row);
            chart
                .draw_series([Circle::new((quantile, middle), 3, BLACK.filled())])
                .map_err(failed)?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(failed)?;
    Ok(())
}

/// The steps that can be seen, and the rest of the median.
fn pieces(side: &Distribution) -> Vec<(String, f64)> {
    let least = side.p50 / 100.0;
    let mut pieces: Vec<(String, f64)> = side
        .steps
        .iter()
        .filter(|(_, ms)| *ms >= least)
        .cloned()
        .collect();
    let told: f64 = pieces.iter().map(|(_, ms)| ms).sum();
    if side.p50 > told {
        pieces.push(("rest".into(), side.p50 - told));
    }
    pieces
}

fn colour(at: usize, name: &str) -> RGBColor {
    if name == "rest" {
        return RGBColor(200, 200, 200);
    }
    let (red, green, blue) = Palette99::pick(at).to_rgba().rgb();
    RGBColor(red, green, blue)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(side: Side, steps: &[(&str, f64)]) -> Distribution {
        Distribution {
            case: "ext4".into(),
            what: "attach".into(),
            side,
            count: 1,
            p50: 100.0,
            p90: 120.0,
            p99: 150.0,
            max: 150.0,
            steps: steps.iter().map(|(n, ms)| ((*n).to_owned(), *ms)).collect(),
        }
    }

    #[test]
    fn a_plot_names_each_side_and_each_step_once() {
        let driver = side(Side::Driver, &[("NodeStageVolume connect", 60.0)]);
        let floor = side(Side::Floor, &[("connect", 70.0)]);
        let svg = stacked("a title", &[&driver, &floor]).unwrap();
        for word in [
            "a title",
            "driver",
            "floor",
            "connect",
            "rest",
            "milliseconds",
        ] {
            let shown = svg.lines().filter(|line| line.trim() == word).count();
            assert_eq!(shown, 1, "{word}");
        }
    }
}
