//! What is measured, and how: the same inner service under different layers, all of them in turns.

pub mod counted;
pub mod governed;
pub mod hand_written;
pub mod inner;
pub mod machine;
pub mod report;
pub mod request;
pub mod rounds;
pub mod variants;
