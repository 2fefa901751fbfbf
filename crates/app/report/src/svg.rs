//! Small pictures that stand in a line of text or in a table and need no script.

use maud::{Markup, html};

use crate::palette::Paint;

/// A bar from 0 to 100, of parts side by side or one over the other. One without a label only
/// repeats what stands beside it.
pub(crate) fn meter(label: Option<&str>, parts: &Markup) -> Markup {
    html! {
        svg.meter
            viewBox="0 0 100 6"
            preserveAspectRatio="none"
            role=[label.map(|_| "img")]
            aria-label=[label]
            aria-hidden=[label.is_none().then_some("true")]
        {
            // A tag that is not closed would hold all that comes after it: SVG has no void ones.
            rect.track width="100" height="6" {}
            (parts)
        }
    }
}

/// A part of a [`meter`], in the colour of a class.
pub(crate) fn part(class: &str, begin: f64, width: f64) -> Markup {
    html! {
        rect.(class)
            x=(format_args!("{begin:.1}"))
            width=(format_args!("{width:.1}"))
            height="6" {}
    }
}

/// A sample of a class's colour, for a legend.
pub(crate) fn swatch(class: &str) -> Markup {
    html! {
        svg.swatch viewBox="0 0 1 1" aria-hidden="true" {
            rect.(class) width="1" height="1" {}
        }
    }
}

/// Shares side by side.
pub(crate) fn bar(shares: &[(Paint, f64)]) -> Markup {
    let mut end = 0.0;
    let placed = shares.iter().map(|(paint, share)| {
        let (begin, width) = (end, (share * 100.0).clamp(0.0, 100.0));
        end += width;
        (paint.class(), begin, width)
    });
    meter(
        None,
        &html! {
            // Less is written as a width of 0.0.
            @for (class, begin, width) in placed.filter(|(.., width)| *width >= 0.05) {
                (part(class, begin, width))
            }
        },
    )
}
