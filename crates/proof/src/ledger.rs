//! What was acknowledged, written down outside of the server: one file of one writer.

use crate::block::Block;

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It was acknowledged.
    Done,
    /// The server died over it: nobody knows.
    Unknown,
}

/// A state in which the file may be: `None` if it is not there, else the version in each slot, 0 for none.
type State = Option<Vec<u64>>;

/// The states in which a file may be: one, or two while a call's fate is unknown.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Who writes it.
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

    /// Whether the file is there.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.states[0].is_some()
    }

    /// How many slots it can have.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// A block that was never written before.
    pub fn block(&mut self, slot: usize) -> Block {
        self.next += 1;
        Block { writer: self.writer, slot: slot as u64, version: self.next, len: self.slot }
    }

    /// Notes that a block was, or may have been, written.
    pub fn wrote(&mut self, block: Block, fate: Fate) {
        let (slot, version) = (block.slot as usize, block.version);
        self.note(fate, |state| {
            let mut slots = state.clone().unwrap_or_default();
            slots.resize(slots.len().max(slot + 1), 0);
            slots[slot] = version;
            Some(slots)
        });
    }

    /// Notes that the file was made empty.
    pub fn emptied(&mut self, fate: Fate) {
        self.note(fate, |_| Some(Vec::new()));
    }

    /// Notes that the file was cut to so many slots.
    pub fn cut(&mut self, slots: usize, fate: Fate) {
        self.note(fate, |state| {
            let mut state = state.clone().unwrap_or_default();
            state.resize(slots, 0);
            Some(state)
        });
    }

    /// Notes that the file was removed.
    pub fn removed(&mut self, fate: Fate) {
        self.note(fate, |_| None);
    }

    fn note(&mut self, fate: Fate, change: impl Fn(&State) -> State) {
        assert_eq!(self.states.len(), 1, "the last fate was settled");
        let after = change(&self.states[0]);
        match fate {
            Fate::Done => self.states = vec![after],
            Fate::Unknown => self.states.push(after),
        }
    }

    /// Compares with what is there now (`None`: nothing), and takes it as the truth if it may be.
    pub fn settle(&mut self, bytes: Option<&[u8]>) -> Result<(), String> {
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
