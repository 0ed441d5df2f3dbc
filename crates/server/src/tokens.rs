//! Open tokens, in memory that survives the process: a token that was closed before a restart stays closed after it.
//!
//! A token counts once for every session that has it open. Tokens that an earlier server process left open wait until
//! their clients re-assert or close them, or until the grace period ends.
//!
//! **Invariant**: a token that was closed as often as it was opened is not found after a restart. An open token may be
//! missing if the store had no space for it or the machine failed: then its file is opened by its current mode.

use forebay_shm::TokenKeys;
use forebay_wire::Token;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Bits of a key that identify the token; the others identify the client.
const TOKEN_BITS: u32 = 48;

/// Open tokens of all sessions.
#[derive(Default)]
pub(crate) struct OpenTokens {
    bag: Option<TokenKeys>,
    /// Tokens that an earlier process left open, with the keys under which clients had them open.
    earlier: Mutex<HashMap<u64, Vec<u64>>>,
}

/// Part of the seal: clients cannot choose it, and no two tokens share it.
fn number(token: &Token) -> u64 {
    let (some, _) = token.seal.split_first_chunk::<8>().expect("a seal has 16 bytes");
    number_in(u64::from_le_bytes(*some)).max(1)
}

fn number_in(key: u64) -> u64 {
    key & ((1 << TOKEN_BITS) - 1)
}

/// A token as opened by a client.
fn key(token: &Token, client: u128) -> u64 {
    number(token) | (client as u64) << TOKEN_BITS
}

impl OpenTokens {
    /// Continues with the tokens of an earlier process.
    pub(crate) fn begin(bag: Option<TokenKeys>) -> OpenTokens {
        let mut earlier: HashMap<u64, Vec<u64>> = HashMap::new();
        for key in bag.iter().flat_map(TokenKeys::all) {
            earlier.entry(number_in(key)).or_default().push(key);
        }
        OpenTokens { bag, earlier: Mutex::new(earlier) }
    }

    /// A session of a client has opened or re-asserted a token.
    pub(crate) fn opened(&self, token: &Token, client: u128) {
        if let Some(bag) = &self.bag {
            // Without space, the client opens the file by its current mode after a restart.
            bag.insert(key(token, client));
        }
    }

    /// A session of a client has closed a token.
    pub(crate) fn closed(&self, token: &Token, client: u128) {
        if let Some(bag) = &self.bag {
            bag.remove(key(token, client));
        }
    }

    /// Whether an earlier process left a token open for a client that has neither re-asserted nor closed it since.
    pub(crate) fn is_left_open(&self, token: &Token) -> bool {
        self.lock().contains_key(&number(token))
    }

    /// A client re-asserts or closes a token that an earlier process left open.
    pub(crate) fn take_left_open(&self, token: &Token, client: u128) {
        let mut earlier = self.lock();
        let Entry::Occupied(mut left) = earlier.entry(number(token)) else { return };
        let own = key(token, client);
        let Some(at) = left.get().iter().position(|&key| key == own) else { return };
        left.get_mut().swap_remove(at);
        if left.get().is_empty() {
            left.remove();
        }
        drop(earlier);
        self.closed(token, client);
    }

    /// The grace period is over: tokens that were not re-asserted are closed.
    pub(crate) fn end_of_grace(&self) {
        let earlier = std::mem::take(&mut *self.lock());
        let Some(bag) = &self.bag else { return };
        for key in earlier.into_values().flatten() {
            bag.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<u64>>> {
        self.earlier.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::{Access, FileId, Uid};
    use forebay_shm::TOKEN_KEYS_BYTES;
    use std::fs::File;

    const ONE: u128 = 1;
    const TWO: u128 = 2;

    fn token(number: u8) -> Token {
        Token { file: FileId(3), access: Access::READ, uid: Uid(7), serial: 1, seal: [number; 16] }
    }

    fn next_process(file: &File) -> OpenTokens {
        OpenTokens::begin(Some(TokenKeys::open(file).unwrap()))
    }

    #[test]
    fn tokens_left_open_count_until_each_of_their_clients_reports() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(TOKEN_KEYS_BYTES).unwrap();
        let tokens = next_process(&file);
        for (number, client) in [(1, ONE), (2, ONE), (2, TWO), (3, ONE), (4, ONE)] {
            tokens.opened(&token(number), client);
        }
        tokens.closed(&token(3), ONE);
        assert!(!tokens.is_left_open(&token(1)), "nothing was left by an earlier process");
        let tokens = next_process(&file);
        assert!(!tokens.is_left_open(&token(3)), "closed before the restart");
        tokens.take_left_open(&token(1), TWO);
        assert!(tokens.is_left_open(&token(1)), "another client has not reported yet");
        tokens.take_left_open(&token(1), ONE);
        tokens.take_left_open(&token(2), ONE);
        assert!(!tokens.is_left_open(&token(1)) && tokens.is_left_open(&token(2)));
        tokens.opened(&token(1), ONE);
        let tokens = next_process(&file);
        let open = [1, 2, 4].map(|number| tokens.is_left_open(&token(number)));
        assert_eq!(open, [true; 3], "a restart in the grace period");
        tokens.take_left_open(&token(2), TWO);
        assert!(!tokens.is_left_open(&token(2)));
        tokens.opened(&token(2), TWO);
        tokens.end_of_grace();
        assert!(!tokens.is_left_open(&token(4)));
        let tokens = next_process(&file);
        let open = [1, 2, 4].map(|number| tokens.is_left_open(&token(number)));
        assert_eq!(open, [false, true, false], "no client re-asserted the others");
    }

    #[test]
    fn without_memory_no_token_counts_as_left_open() {
        let tokens = OpenTokens::default();
        tokens.opened(&token(1), ONE);
        assert!(!tokens.is_left_open(&token(1)));
        tokens.take_left_open(&token(1), ONE);
        tokens.closed(&token(1), ONE);
        tokens.end_of_grace();
    }
}
