//! Nothing but a place for the model checks in `tests/`.
