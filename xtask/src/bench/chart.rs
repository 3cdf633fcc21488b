//! Charts as SVG text, drawn by plotters: points, lines and steps over two axes, one panel below the other, and heat maps.
//! There are no scripts, and colours follow the light or dark scheme of the reader, so that a page with charts is a single file.

mod axis;
mod heat_map;
mod theme;

use std::iter::{Once, once};

use plotters::coord::Shift;
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use plotters_backend::{BackendCoord, DrawingErrorKind};

use axis::Scaled;
use theme::{GRID, INK, PAPER};

pub(super) use axis::Axis;
pub(super) use heat_map::{Labels, heat_map};
pub(super) use theme::COLORS;

/// Area that drawings go to.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Result of drawing; text in memory takes everything.
type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// Pixels of a panel without its legend.
const WIDTH: u32 = 720;
const LEGEND: u32 = 280;
/// Height of the title, and of a line of the legend.
const TITLE: u32 = 34;
const LINE: u32 = 19;
/// Room for the labels of the axes.
const LEFT: u32 = 76;
const BELOW: u32 = 48;

/// Series over two axes, with a legend beside them.
#[derive(Debug, Clone)]
pub(super) struct Panel {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
    /// Pixels.
    pub(super) height: u32,
}

/// Points of one colour.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<Point>,
    pub(super) join: Join,
}

/// Line through the points of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Join {
    /// None: the points are marked.
    Apart,
    /// From point to point; the points are marked.
    Line,
    /// Constant from each point to the next.
    Steps,
}

/// A value, with the interval that holds it where one was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// Lower and upper end in y.
    pub(super) interval: Option<[f64; 2]>,
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Self {
        Self { x, y, interval: None }
    }
}

/// A chart with one panel of the usual height.
pub(super) fn chart(title: &str, x: &Axis, y: &Axis, series: Vec<Series>) -> String {
    panels(title, &[Panel { x: x.clone(), y: y.clone(), series, height: 420 }])
}

/// A chart of panels, one below the other. Points that a logarithmic axis cannot show are left out.
pub(super) fn panels(title: &str, panels: &[Panel]) -> String {
    let heights = panels.iter().map(|panel| panel.height.max(LINE * len(&panel.series) + 34));
    let size = (WIDTH + LEGEND, TITLE + heights.clone().sum::<u32>());
    picture(title, size, |mut rest| {
        for (panel, height) in panels.iter().zip(heights) {
            let (area, below) = rest.split_vertically(height);
            panel.draw(&area)?;
            rest = below;
        }
        Ok(())
    })
}

/// An SVG with a title, and `draw` below it.
fn picture(title: &str, size: (u32, u32), draw: impl FnOnce(Area<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    let written = || -> Drawn {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&PAPER)?;
        let (head, rest) = root.split_vertically(TITLE);
        head.draw(&Text::new(title, (10, 10), theme::text(18.0)))?;
        draw(rest)?;
        root.present()
    };
    written().expect("text in memory takes every drawing");
    theme::follow_scheme(&svg)
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        let shown = |series: &Series| -> Vec<Point> {
            series.points.iter().copied().filter(|p| self.x.holds(p.x) && self.y.holds(p.y)).collect()
        };
        let points: Vec<Vec<Point>> = self.series.iter().map(shown).collect();
        let all = || points.iter().flatten();
        let ends = |point: &Point| point.interval.into_iter().flatten().chain([point.y]).collect::<Vec<_>>();
        let x = self.x.over(all().map(|point| point.x));
        let y = self.y.over(all().flat_map(ends).filter(|end| self.y.holds(*end)));
        let (plot, legend) = area.split_horizontally(WIDTH);
        let mut chart = ChartBuilder::on(&plot)
            .margin(10)
            .x_label_area_size(BELOW)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc(self.x.title)
            .y_desc(self.y.title)
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(theme::text(14.0))
            .axis_desc_style(theme::text(15.0))
            .draw()?;
        for (index, (series, points)) in self.series.iter().zip(&points).enumerate() {
            draw_series(&mut chart, index, series.join, points)?;
            let row =
                i32::try_from(LINE).expect("few pixels") * i32::try_from(index).expect("few series") + 20;
            legend.draw(&Mark { at: (14, row), series: index })?;
            legend.draw(&Text::new(series.name.clone(), (26, row - 7), theme::text(14.0)))?;
        }
        Ok(())
    }
}

/// Coordinates of a panel.
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scaled, Scaled>>;

fn draw_series(chart: &mut Plane<'_, '_>, index: usize, join: Join, points: &[Point]) -> Drawn {
    let color = COLORS[index % COLORS.len()];
    let path: Vec<(f64, f64)> = match join {
        Join::Apart => Vec::new(),
        Join::Line => points.iter().map(|point| (point.x, point.y)).collect(),
        Join::Steps => stairs(points),
    };
    chart.draw_series(LineSeries::new(path, color.stroke_width(2)))?;
    let bars = points.iter().filter_map(|point| Some((point, point.interval?)));
    chart.draw_series(bars.map(|(point, [low, high])| {
        ErrorBar::new_vertical(point.x, low, point.y, high, color.stroke_width(1), 8)
    }))?;
    let marked = points.iter().filter(|_| join != Join::Steps);
    chart.draw_series(marked.map(|point| Mark { at: (point.x, point.y), series: index }))?;
    Ok(())
}

/// Corners of a line that keeps each value until the next.
fn stairs(points: &[Point]) -> Vec<(f64, f64)> {
    let corners = points.windows(2).flat_map(|pair| [(pair[0].x, pair[0].y), (pair[1].x, pair[0].y)]);
    corners.chain(points.last().map(|last| (last.x, last.y))).collect()
}

/// The mark of a series: where colours run out, the next series have another form.
struct Mark<C> {
    at: C,
    series: usize,
}

impl<'a, C> PointCollection<'a, C> for &'a Mark<C> {
    type Point = &'a C;
    type IntoIter = Once<&'a C>;

    fn point_iter(self) -> Self::IntoIter {
        once(&self.at)
    }
}

impl<C, B: DrawingBackend> Drawable<B> for Mark<C> {
    fn draw<I: Iterator<Item = BackendCoord>>(
        &self,
        mut at: I,
        backend: &mut B,
        _: (u32, u32),
    ) -> Result<(), DrawingErrorKind<B::ErrorType>> {
        let (x, y) = at.next().expect("a mark is at one point");
        let style = COLORS[self.series % COLORS.len()].filled();
        match self.series / COLORS.len() {
            0 => backend.draw_circle((x, y), 4, &style, true),
            1 => backend.draw_rect((x - 4, y - 4), (x + 4, y + 4), &style, true),
            2 => backend.fill_polygon([(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)], &style),
            _ => backend.fill_polygon([(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], &style),
        }
    }
}

fn len<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("few items")
}

#[cfg(test)]
mod tests;
