//! Heat maps: a cell per value, from light (0) to dark (1).

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::theme::{self, INK};
use super::{Area, BELOW, Drawn, LEFT, TITLE, len, picture};

/// Height of the legend of colours.
const KEY: u32 = 28;
/// Colour of values that are not finite.
const NONE: RGBColor = RGBColor(0xb4, 0xb4, 0xb4);

/// Labels of the rows or columns of a heat map; those for which there is room are written.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Labels {
    pub(in crate::bench) name: &'static str,
    pub(in crate::bench) each: Vec<String>,
}

impl Labels {
    /// Counted from 0.
    pub(in crate::bench) fn counted(name: &'static str, count: usize) -> Self {
        Self { name, each: (0..count).map(|i| i.to_string()).collect() }
    }

    /// Indices of labels at least `apart` pixels from each other, for cells `cell` pixels wide.
    pub(super) fn shown(&self, cell: u32, apart: u32) -> impl Iterator<Item = usize> {
        let round = (0..9).flat_map(|power| [1, 2, 5].map(|step| step * 10_usize.pow(power)));
        let every = round.into_iter().find(|every| *every * cell as usize >= apart as usize);
        (0..self.each.len()).step_by(every.unwrap_or(usize::MAX))
    }
}

/// Cells along an axis: cell `i` is from `i` to `i + 1`.
#[derive(Clone)]
struct Cells<'a> {
    labels: &'a Labels,
    count: usize,
    cell: u32,
    /// From the top, as rows are.
    down: bool,
}

impl Ranged for Cells<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let (from, to) = if self.down { (to, from) } else { (from, to) };
        #[expect(clippy::cast_precision_loss, reason = "cells of a picture")]
        let part = value / self.count as f64;
        #[expect(clippy::cast_possible_truncation, reason = "pixels of a picture")]
        let pixel = (f64::from(from) + part * f64::from(to - from)).round() as i32;
        pixel
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        #[expect(clippy::cast_precision_loss, reason = "cells of a picture")]
        let middle = |cell: usize| cell as f64 + 0.5;
        self.labels.shown(self.cell, if self.down { 14 } else { 40 }).map(middle).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "cells of a picture")]
    fn range(&self) -> Range<f64> {
        0.0..self.count as f64
    }
}

impl ValueFormatter<f64> for Cells<'_> {
    fn format_ext(&self, value: &f64) -> String {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the middle of a cell")]
        let cell = *value as usize;
        self.labels.each.get(cell).cloned().unwrap_or_default()
    }
}

/// A heat map of rows of values from 0 to 1; values that are not finite are grey.
pub(in crate::bench) fn heat_map(title: &str, x: &Labels, y: &Labels, rows: &[Vec<f64>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let (width, height) = (640 / u32::try_from(columns).unwrap_or(640), 144 / len(rows).max(1));
    let (width, height) = (width.clamp(1, 36), height.clamp(12, 24));
    let x = Cells { labels: x, count: columns, cell: width, down: false };
    let y = Cells { labels: y, count: rows.len().max(1), cell: height, down: true };
    let cells = |axis: &Cells<'_>| axis.cell * u32::try_from(axis.count).unwrap_or(u32::MAX / 64);
    // A letter of a title is at most 10 pixels wide.
    let wide =
        (LEFT + cells(&x) + 10).max(330).max(10 * u32::try_from(title.chars().count()).unwrap_or(100)) + 30;
    picture(title, (wide, TITLE + KEY + cells(&y) + BELOW + 10), |area| {
        let (key, below) = area.split_vertically(KEY);
        draw_key(&key)?;
        let (map, _) = below.split_horizontally(LEFT + cells(&x) + 20);
        draw_map(&map, &x, &y, rows)
    })
}

fn draw_map(area: &Area<'_>, x: &Cells<'_>, y: &Cells<'_>, rows: &[Vec<f64>]) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .margin_left(10)
        .margin_right(10)
        .x_label_area_size(BELOW)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc(x.labels.name)
        .y_desc(y.labels.name)
        .axis_style(INK)
        .label_style(theme::text(14.0))
        .axis_desc_style(theme::text(15.0))
        .draw()?;
    for (row, values) in (0_u32..).zip(rows) {
        chart.draw_series((0_u32..).zip(values).map(|(column, value)| {
            let fill = if value.is_finite() { shade(*value) } else { NONE };
            let (left, top) = (f64::from(column), f64::from(row));
            Rectangle::new([(left, top), (left + 1.0, top + 1.0)], fill.filled())
        }))?;
    }
    Ok(())
}

/// The legend: shades from 0 to 1, and the colour of cells without a value.
fn draw_key(area: &Area<'_>) -> Drawn {
    let left = i32::try_from(LEFT).expect("few pixels");
    let text = |text: &'static str, x: i32| Text::new(text, (x, 6), theme::text(14.0));
    let cell = |x: i32, color: RGBColor| Rectangle::new([(x, 5), (x + 16, 18)], color.filled());
    area.draw(&text("0", left))?;
    for step in 0..=4 {
        area.draw(&cell(left + 12 + 16 * step, shade(f64::from(step) / 4.0)))?;
    }
    area.draw(&text("1", left + 98))?;
    area.draw(&cell(left + 126, NONE))?;
    area.draw(&text("none (dense)", left + 148))
}

/// Light to dark blue.
pub(super) fn shade(value: f64) -> RGBColor {
    let mix = |light: u8, dark: u8| {
        let mixed = f64::from(light) + (f64::from(dark) - f64::from(light)) * value.clamp(0.0, 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two bytes")]
        let mixed = mixed.round() as u8;
        mixed
    };
    RGBColor(mix(0xf2, 0x08), mix(0xf5, 0x30), mix(0xfa, 0x6b))
}
