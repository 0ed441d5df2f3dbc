//! The acknowledged writes of one file of one writer, recorded outside of the server.

use crate::block::Block;

/// The outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The server acknowledged it.
    Done,
    /// The server died during the call: the outcome is unknown.
    Unknown,
}

/// A possible state of the file: `None` if it does not exist, else the version in each slot (0 for none).
type State = Option<Vec<u64>>;

/// The possible states of a file: one, or two while the outcome of a call is unknown.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Its writer.
    pub writer: u64,
    /// Bytes in one slot.
    pub slot: u64,
    slots: usize,
    states: Vec<State>,
    next: u64,
}

impl Ledger {
    /// A file that does not exist.
    #[must_use]
    pub fn new(writer: u64, slot: u64, slots: usize) -> Ledger {
        Ledger { writer, slot, slots, states: vec![None], next: 0 }
    }

    /// Whether the file exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.states[0].is_some()
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// A block with a new version.
    pub fn block(&mut self, slot: usize) -> Block {
        self.next += 1;
        Block { writer: self.writer, slot: slot as u64, version: self.next, len: self.slot }
    }

    /// Records that a block was, or may have been, written.
    pub fn wrote(&mut self, block: Block, fate: Fate) {
        let (slot, version) = (block.slot as usize, block.version);
        self.note(fate, |state| {
            let mut slots = state.clone().unwrap_or_default();
            slots.resize(slots.len().max(slot + 1), 0);
            slots[slot] = version;
            Some(slots)
        });
    }

    /// Records that the file was truncated to zero or created.
    pub fn emptied(&mut self, fate: Fate) {
        self.note(fate, |_| Some(Vec::new()));
    }

    /// Records that the file was truncated to the given number of slots.
    pub fn truncated(&mut self, slots: usize, fate: Fate) {
        self.note(fate, |state| {
            let mut state = state.clone().unwrap_or_default();
            state.resize(slots, 0);
            Some(state)
        });
    }

    /// Records that the file was removed.
    pub fn removed(&mut self, fate: Fate) {
        self.note(fate, |_| None);
    }

    fn note(&mut self, fate: Fate, change: impl Fn(&State) -> State) {
        assert_eq!(self.states.len(), 1, "the outcome of the previous call is known");
        let after = change(&self.states[0]);
        match fate {
            Fate::Done => self.states = vec![after],
            Fate::Unknown => self.states.push(after),
        }
    }

    /// Checks that the contents (`None`: no file) are a possible state, and makes them the only one.
    pub fn reconcile(&mut self, bytes: Option<&[u8]>) -> Result<(), String> {
        let found = bytes.map(|bytes| self.versions(bytes)).transpose()?;
        if !self.states.contains(&found) {
            return Err(format!(
                "writer {}: found {found:?}, acknowledged or in flight {:?}",
                self.writer, self.states
            ));
        }
        self.states = vec![found];
        Ok(())
    }

    fn versions(&self, bytes: &[u8]) -> Result<Vec<u64>, String> {
        if !(bytes.len() as u64).is_multiple_of(self.slot) {
            return Err(format!("writer {}: a file of {} bytes", self.writer, bytes.len()));
        }
        let slots = bytes.chunks(self.slot as usize).enumerate();
        slots
            .map(|(slot, bytes)| match Block::read(bytes)? {
                None => Ok(0),
                Some(block) if block.writer == self.writer && block.slot == slot as u64 => Ok(block.version),
                Some(block) => Err(format!("{block:?} in slot {slot} of writer {}", self.writer)),
            })
            .collect()
    }

    /// Bytes of data that the file holds.
    #[must_use]
    pub fn live(&self) -> u64 {
        let slots = self.states[0].iter().flatten();
        slots.filter(|&&version| version > 0).count() as u64 * self.slot
    }
}
