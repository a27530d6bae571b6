//! What is printed: a head, and a table that can be pasted into a README.

use comfy_table::{CellAlignment, Table, presets};

use crate::machine::Machine;

pub struct Report(Table);

// === impl Report ===

impl Report {
    /// Says what is measured, and on what, before it begins.
    pub fn begin<const N: usize>(what: &str, head: [&str; N]) -> Self {
        println!("\n{what}\n\n{Machine}\n");
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_header(head);
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        Self(table)
    }

    pub fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.0.add_row([name.to_owned()].into_iter().chain(cells));
    }

    pub fn print(self) {
        println!("{}", self.0);
    }
}
