//! Colours, in a light and a dark scheme.

use plotters::prelude::*;

pub(super) const PAPER: RGBColor = WHITE;
pub(super) const INK: RGBColor = BLACK;
/// Lines behind the data.
pub(super) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Paper, ink and lines of the dark scheme.
const DARK: [RGBColor; 3] =
    [RGBColor(0x16, 0x18, 0x1d), RGBColor(0xe4, 0xe4, 0xe4), RGBColor(0x3a, 0x3d, 0x44)];

/// Colours of series, readable on the paper of both schemes.
pub(in crate::bench) const COLORS: [RGBColor; 10] = [
    RGBColor(0x2f, 0x7d, 0xc4),
    RGBColor(0xd1, 0x49, 0x5b),
    RGBColor(0x2a, 0x94, 0x59),
    RGBColor(0xb5, 0x7e, 0x0f),
    RGBColor(0x8d, 0x68, 0xbf),
    RGBColor(0x0e, 0x8f, 0x9e),
    RGBColor(0xc9, 0x5f, 0xa5),
    RGBColor(0xd8, 0x62, 0x14),
    RGBColor(0x7c, 0x7c, 0x7c),
    RGBColor(0x6f, 0x8f, 0x1f),
];

/// Text of a size in pixels.
pub(super) fn text(size: f64) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK)
}

/// Adds the dark scheme to an SVG: readers that ask for it get its paper, ink and lines.
pub(super) fn follow_scheme(svg: &str) -> String {
    let hex = |color: RGBColor| format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2);
    let rules = [PAPER, INK, GRID].into_iter().zip(DARK).flat_map(|(light, dark)| {
        ["fill", "stroke"].map(|part| format!("svg [{part}=\"{}\"]{{{part}:{}}}", hex(light), hex(dark)))
    });
    let style = format!("<style>@media (prefers-color-scheme:dark){{{}}}</style>", rules.collect::<String>());
    let (open, rest) = svg.split_once('\n').expect("an SVG begins with a line of its own");
    format!("{open}\n{style}\n{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contrast of two colours after WCAG 2.2: from 1 to 21.
    fn contrast(a: RGBColor, b: RGBColor) -> f64 {
        let luminance = |color: RGBColor| {
            let linear = |part: u8| {
                let part = f64::from(part) / 255.0;
                if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * linear(color.0) + 0.7152 * linear(color.1) + 0.0722 * linear(color.2)
        };
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn colours_are_readable_in_both_schemes() {
        // The bounds are WCAG's for graphics and for text.
        for (index, color) in COLORS.into_iter().enumerate() {
            for paper in [PAPER, DARK[0]] {
                assert!(contrast(color, paper) >= 3.0, "colour {index}: {}", contrast(color, paper));
            }
        }
        assert!(contrast(INK, PAPER) >= 7.0 && contrast(DARK[1], DARK[0]) >= 7.0);
    }

    #[test]
    fn the_dark_scheme_replaces_what_is_drawn() {
        let svg = follow_scheme("<svg>\n<text fill=\"#000000\">\n</svg>\n");
        assert!(svg.contains("svg [fill=\"#000000\"]{fill:#E4E4E4}"), "{svg}");
        assert!(svg.starts_with("<svg>\n<style>") && svg.ends_with("</svg>\n"));
    }
}
