use super::*;

#[test]
fn a_link_that_fails_outside_all_whole_iterations_has_none() {
    let marks_ns = [100, 200, 300];
    let during = |span_ns| iterations_during(&marks_ns, span_ns);
    assert_eq!(during((120, 150)), 1..2);
    assert_eq!(during((50, 250)), 1..3);
    assert_eq!(during((250, 900)), 2..3);
    assert!(during((10, 50)).is_empty());
    assert!(during((310, 350)).is_empty());
}
