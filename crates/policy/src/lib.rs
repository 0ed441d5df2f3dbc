//! Pure decisions: whose turn it is, where a write goes
